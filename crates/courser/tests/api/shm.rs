//! Endpoints over shared memory: on threads, in processes that are killed and restarted, asleep,
//! with lost frames, and with invalid addresses.
//!
//! The other process runs this test program with the ignored test below. It exits when its standard
//! input is closed, so that it does not outlive a test.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::common::*;
use courser::{
    BindError, CallError, Config, Nexus, OptionSet, Recovery, Rpc, SessionError, SessionState,
    ShmOptions,
};
use courser_net::{FaultConfig, FaultPlan, FaultTransport, ShmConfig, ShmTransport, Trust};

const SHM: &str = "shm://127.0.0.1:0";
const ECHO: u16 = 1;

fn shm_client(config: Config) -> Rpc {
    Nexus::bind_with(SHM, config).unwrap().endpoint().unwrap()
}

fn shm_server(config: Config) -> Server {
    Server::start_at(SHM, config, |rpc| rpc.on(ECHO, |cx, req| cx.reply(req)))
}

/// Calls of all sizes, several at a time.
fn calls(client: &mut Rpc, uri: &str, count: u64) {
    let sessions: Vec<_> = (0..3).map(|_| client.connect(uri).unwrap()).collect();
    for &session in &sessions {
        client.wait_connected(session).unwrap();
    }
    let log = Log::default();
    let len = |id: u64| [0, 32, 240, 241, 5000, 32, 70_000, 1_000_000][id as usize % 8];
    for id in 0..count {
        let request = message(client, id, len(id));
        call(client, sessions[id as usize % 3], ECHO, request, &log, id);
    }
    client.run_until(|| log.borrow().len() as u64 == count).unwrap();
    for (id, ended) in log.borrow().iter() {
        assert!(ended.result == Ok(expected(*id, len(*id))), "call {id}: {:?}", ended.result);
    }
    client.check();
}

#[test]
fn calls_between_threads() {
    let server = shm_server(Config::default());
    assert!(server.uri.starts_with("shm://127.0.0.1:"), "{}", server.uri);
    let mut client = shm_client(Config::default());
    calls(&mut client, &server.uri, 400);
    let stats = client.transport_stats();
    assert_eq!((stats.rx_dropped, stats.tx_full), (0, 0));
}

/// Both sides trust each other, or one does: packets are read in place or copied, with the same
/// results.
#[test]
fn calls_between_trusting_peers() {
    for (ours, theirs) in [(true, true), (true, false), (false, true)] {
        let config = |trusts: bool| {
            // SAFETY: both ends are threads of this test, which writes to no frame that was sent.
            let trust = trusts.then(|| unsafe { Trust::in_peers() });
            let options = ShmOptions { trust, ..ShmOptions::default() };
            Config { transport: OptionSet::new().with(options), ..Config::default() }
        };
        let server = shm_server(config(theirs));
        let mut client = shm_client(config(ours));
        calls(&mut client, &server.uri, 400);
        assert_eq!(client.transport_stats().rx_dropped, 0);
    }
}

/// Neither side spins, so each frame must wake its receiver; a lost wake-up blocks the test.
#[test]
fn endpoints_that_sleep_are_woken() {
    let config = Config { spin: Some(Duration::ZERO), ..Config::default() };
    let server = shm_server(config.clone());
    let mut client = shm_client(config);
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    for id in 0..300 {
        let request = message(&client, id, 40);
        let log = Log::default();
        call(&mut client, session, ECHO, request, &log, id);
        client.run_until(|| !log.borrow().is_empty()).unwrap();
        assert!(log.borrow()[0].1.result == Ok(expected(id, 40)));
    }
}

/// The same with an event loop that sleeps on the endpoint's descriptor.
#[test]
fn external_event_loops_are_woken() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let server = shm_server(Config::default());
    let mut client = shm_client(Config::default());
    let session = client.connect(&server.uri).unwrap();
    client.wait_connected(session).unwrap();
    for id in 0..100 {
        let log = Log::default();
        let request = message(&client, id, 40);
        call(&mut client, session, ECHO, request, &log, id);
        while log.borrow().is_empty() {
            if client.poll() {
                continue;
            }
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let fd = client.event_fd().expect("a descriptor");
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "the answer makes it readable");
        }
        assert!(log.borrow()[0].1.result == Ok(expected(id, 40)));
    }
}

#[test]
fn calls_to_several_endpoints_of_one_nexus() {
    let nexus = Nexus::bind(SHM).unwrap();
    let mut servers: Vec<Rpc> = (0..3).map(|_| nexus.endpoint().unwrap()).collect();
    for (n, server) in servers.iter_mut().enumerate() {
        server.on(ECHO, move |cx, _| cx.reply(&[n as u8][..]));
    }
    let mut client = shm_client(Config::default());
    for n in 0..3 {
        let mut all: Vec<&mut Rpc> = servers.iter_mut().collect();
        let uri = format!("{}/{n}", nexus.local_uri());
        let session = connect(&mut client, &mut all, &uri);
        let request = message(&client, 1, 8);
        let ended = call_and_wait(&mut client, &mut all, session, ECHO, request);
        assert_eq!(ended.result, Ok(vec![n as u8]));
    }
}

/// Each has its own ring to the server, and so gets all credits that it requests.
#[test]
fn clients_take_no_credits_from_each_other() {
    let server = shm_server(Config::default());
    let nexus = Nexus::bind(SHM).unwrap();
    let mut clients: Vec<Rpc> = (0..12).map(|_| nexus.endpoint().unwrap()).collect();
    for client in &mut clients {
        let session = client.connect(&server.uri).unwrap();
        client.wait_connected(session).unwrap();
        let stats = client.session_stats(session).unwrap();
        assert_eq!((stats.credit_limit, stats.pool), (32, 32));
    }
}

/// Endpoints that dial each other at the same time are two peers, with one ring in each direction.
fn sessions_in_both_directions(config: &Config) -> [Rpc; 2] {
    let nexuses = [0, 1].map(|_| Nexus::bind_with(SHM, config.clone()).unwrap());
    let [mut a, mut b] = [0, 1].map(|n| nexuses[n].endpoint().unwrap());
    for rpc in [&mut a, &mut b] {
        rpc.on(ECHO, |cx, req| cx.reply(req));
    }
    let mut sessions = Vec::new();
    for _ in 0..6 {
        let new = [
            a.connect(&nexuses[1].local_uri()).unwrap(),
            b.connect(&nexuses[0].local_uri()).unwrap(),
        ];
        let open = |rpc: &Rpc, session| rpc.session_state(session) == SessionState::Connected;
        drive_until(&mut [&mut a, &mut b], |all| open(all[0], new[0]) && open(all[1], new[1]));
        sessions.extend([(0, new[0]), (1, new[1])]);
    }
    let log = Log::default();
    for (id, &(n, session)) in (0..).zip(&sessions) {
        let rpc = if n == 0 { &mut a } else { &mut b };
        let request = message(rpc, id, 4 << 20);
        call(rpc, session, ECHO, request, &log, id);
    }
    drive(&mut [&mut a, &mut b], || log.borrow().len() == sessions.len());
    assert!(log.borrow().iter().all(|(id, e)| e.result == Ok(expected(*id, 4 << 20))));
    for rpc in [&a, &b] {
        let (granted, queue) =
            (rpc.credits_granted(), rpc.transport().caps().rx_queue_frames as u64);
        assert!(granted <= queue + 4, "{granted} credits for {queue} frames");
        rpc.check();
    }
    [a, b]
}

/// With the default recovery a pause of this thread has probes and repeated packets sent while the first
/// ones are still in the ring.
#[test]
fn sessions_in_both_directions_end_their_calls() {
    sessions_in_both_directions(&Config::default());
}

/// Go-back-N without time-outs sends no packet twice.
#[test]
fn sessions_in_both_directions_do_not_overrun_a_ring() {
    let never = Duration::from_secs(60);
    let recovery = Recovery::GoBackN;
    let config =
        Config { rto: (never, never), idle_after: 2 * never, recovery, ..Config::default() };
    for rpc in sessions_in_both_directions(&config) {
        assert_eq!(rpc.transport_stats().tx_dropped, 0, "{:?}", rpc.stats());
    }
}

#[test]
fn addresses_of_other_machines_are_rejected() {
    for host in ["0.0.0.0", "[::]", "10.0.0.1", "127.0.0.2"] {
        let error = Nexus::bind(&format!("shm://{host}:0")).unwrap_err();
        assert!(matches!(error, BindError::Transport(_)), "{error:?}");
        assert!(error.to_string().contains("stays on this machine"), "{error}");
    }
    let mut client = shm_client(Config::default());
    let error = client.connect("shm://10.0.0.1:31850").unwrap_err();
    assert!(matches!(error, SessionError::Path(_)), "{error:?}");
    assert!(error.to_string().contains("stays on this machine"), "{error}");
    let error = client.connect("udp://127.0.0.1:31850").unwrap_err();
    assert!(matches!(error, SessionError::Scheme { .. }), "{error:?}");
}

/// A server in another process.
struct Process(Child, String);

impl Process {
    fn start() -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "shm::server_process"])
            .env("COURSER_TEST_SHM", "server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = out.lines().map(Result::unwrap);
        let uri = lines.find_map(|l| Some(l[l.find("shm://")?..].to_owned())).unwrap();
        Process(child, uri)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn server_process() {
    if std::env::var_os("COURSER_TEST_SHM").is_none() {
        return;
    }
    let nexus = Nexus::bind(SHM).unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    rpc.on(ECHO, |cx, req| cx.reply(req));
    let handle = rpc.handle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        handle.stop();
    });
    println!("{}", nexus.local_uri());
    rpc.run().unwrap();
}

#[test]
fn calls_between_processes_of_which_one_is_killed() {
    let mut client = shm_client(Config::default());
    for _ in 0..3 {
        let server = Process::start();
        calls(&mut client, &server.1, 100);
        let session = client.connect(&server.1).unwrap();
        client.wait_connected(session).unwrap();
        drop(server);
        let request = message(&client, 0, 40);
        let ended = call_and_wait(&mut client, &mut [], session, ECHO, request);
        assert!(matches!(ended.result, Err(CallError::PeerFailed(_))), "{:?}", ended.result);
        client.check();
    }
}

/// Shared memory loses no frames, but the transport does not promise that.
#[test]
fn calls_over_lost_duplicated_and_reordered_frames() {
    for seed in [1, 2, 3] {
        let tx = FaultPlan {
            loss_ppm: 10_000,
            duplicate_ppm: 20_000,
            reorder_ppm: 20_000,
            reorder_span: 20,
            ..FaultPlan::default()
        };
        let rto = (Duration::from_micros(200), Duration::from_millis(20));
        let datapath_timeout = Duration::from_secs(60);
        let config = Config { rto, datapath_timeout, ..Config::default() };
        let endpoint = |seed| {
            let nexus = Nexus::bind_with(SHM, config.clone()).unwrap();
            let shm = ShmTransport::bind(&ShmConfig::default()).unwrap();
            let faults = FaultConfig { seed, tx: tx.clone(), rx: FaultPlan::default() };
            let rpc = nexus.endpoint_on(FaultTransport::new(shm, faults)).unwrap();
            (nexus, rpc)
        };
        let ((nexus, mut server), (_nexus, mut client)) = (endpoint(seed), endpoint(seed + 100));
        server.on(ECHO, |cx, req| cx.reply(req));
        let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
        let log = Log::default();
        for id in 0..200_u64 {
            let request = message(&client, id, [32, 9000, 240, 100_000][id as usize % 4]);
            call(&mut client, session, ECHO, request, &log, id);
        }
        drive(&mut [&mut client, &mut server], || log.borrow().len() == 200);
        for (id, ended) in log.borrow().iter() {
            let len = [32, 9000, 240, 100_000][*id as usize % 4];
            assert!(ended.result == Ok(expected(*id, len)), "call {id}");
        }
        assert!(client.stats().retransmitted > 0, "faults occurred");
        client.check();
        server.check();
    }
}

/// The environment variable with the server's address.
const CALLED: &str = "COURSER_TEST_CALLED";

#[test]
#[ignore = "the process of the test below"]
fn client_process() {
    let Ok(uri) = std::env::var(CALLED) else { return };
    calls(&mut shm_client(Config::default()), &uri, 40);
    println!("all answered");
}

/// The kernel shows its process number as 0 there. Also what containers of one user do.
#[test]
fn a_peer_in_another_pid_namespace_is_served() {
    const APART: [&str; 4] = ["--user", "--map-current-user", "--pid", "--fork"];
    let probe = Command::new("unshare").args(APART).arg("true").output();
    match probe {
        Ok(probe) if probe.status.success() => {}
        Ok(probe) => {
            let why = String::from_utf8_lossy(&probe.stderr);
            return println!("skipped: no PID namespace can be made: {}", why.trim());
        }
        Err(e) => return println!("skipped: `unshare` cannot be started: {e}"),
    }
    let server = shm_server(Config::default());
    let program = std::env::current_exe().unwrap();
    let client = Command::new("unshare")
        .args(APART)
        .arg(program)
        .args(["--ignored", "--exact", "--nocapture", "shm::client_process"])
        .env(CALLED, &server.uri)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&client.stdout);
    let errors = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() && out.contains("all answered"), "{out}{errors}");
}

/// The environment variable that makes a process bind.
const BINDS: &str = "COURSER_TEST_BINDS";

#[test]
#[ignore = "the process of the test below"]
fn binding_process() {
    if std::env::var_os(BINDS).is_none() {
        return;
    }
    let bound = Nexus::bind(SHM).and_then(|nexus| Ok((nexus.endpoint()?, nexus)));
    let (mut server, nexus) = match bound {
        Ok(bound) => bound,
        Err(e) => return println!("refused: {e}"),
    };
    server.on(ECHO, |cx, req| cx.reply(req));
    let mut client = shm_client(Config::default());
    let session = connect(&mut client, &mut [&mut server], &nexus.local_uri());
    let request = message(&client, 1, 8 << 20);
    let ended = call_and_wait(&mut client, &mut [&mut server], session, ECHO, request);
    assert!(ended.result == Ok(expected(1, 8 << 20)));
    println!("served");
}

/// Binds in a process that sees file systems of its own. `mounts` is a script with `$0` for the
/// directory of the sockets. Returns the line of the process, or why it cannot be started.
fn bound_with(mounts: &str) -> Result<String, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("courser-mounts-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let parent = std::env::temp_dir().join(name);
    let dir = parent.join("sockets");
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).unwrap();
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg(format!("{mounts} || exit 9; exec \"$@\""))
        .arg(&dir)
        .arg(program)
        .args(["--ignored", "--exact", "--nocapture", "shm::binding_process"])
        .env("COURSER_SHM_DIR", &dir)
        .env(BINDS, "yes")
        .output();
    let _ = std::fs::remove_dir_all(&parent);
    let output = output.map_err(|e| format!("`unshare` cannot be started: {e}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if matches!(output.status.code(), Some(1 | 9)) {
        return Err(format!("no file system can be mounted: {}", errors.trim()));
    }
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{errors}");
    let line = out.lines().find(|line| line.contains("refused: ") || line.contains("served"));
    Ok(line.unwrap_or_else(|| panic!("{out}{errors}")).to_owned())
}

#[test]
fn a_directory_without_room_or_access_is_an_error_that_names_it_and_what_is_missing() {
    // Mounted over the directory: full at the socket, read-only, and one whose parent is read-only.
    let rows = [
        ("mount -t tmpfs -o mode=0700,nr_inodes=2 t $0", &["0 inodes", "needs an inode"][..]),
        ("mount -t tmpfs -o mode=0700,ro t $0", &["Read-only"]),
        ("mount -t tmpfs -o ro t $(dirname $0)", &["Read-only"]),
    ];
    for (mounts, words) in rows {
        match bound_with(mounts) {
            Ok(line) => {
                for word in ["refused: ", "courser-mounts-", "COURSER_SHM_DIR"].iter().chain(words)
                {
                    assert!(line.contains(word), "{mounts}: {line}");
                }
            }
            Err(why) => return println!("skipped: {why}"),
        }
    }
}

/// Rings are anonymous memory: no file system limits them.
#[test]
fn a_tiny_or_full_file_system_of_shared_memory_is_no_limit() {
    for fills in ["true", "head -c 4096 /dev/zero >/dev/shm/f"] {
        match bound_with(&format!("mount -t tmpfs -o size=4k t /dev/shm && {fills}")) {
            Ok(line) => assert!(line.contains("served"), "{line}"),
            Err(why) => return println!("skipped: {why}"),
        }
    }
}

/// The environment variable with the address that a process of another user connects to.
const FOREIGN: &str = "COURSER_TEST_FOREIGN";

#[test]
#[ignore = "the process of the test below"]
fn foreign_process() {
    let Ok(uri) = std::env::var(FOREIGN) else { return };
    match Nexus::bind(SHM) {
        Ok(nexus) => {
            let mut rpc = nexus.endpoint().unwrap();
            let session = rpc.connect(&uri).unwrap();
            println!("refused: {}", rpc.wait_connected(session).unwrap_err());
        }
        Err(e) => println!("refused: {e}"),
    }
}

#[test]
fn a_process_of_another_user_is_refused_at_once_with_the_reason() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may start a process of another user");
    }
    let theirs = std::env::temp_dir().join(format!("courser-foreign-{}", std::process::id()));
    let ours = std::env::temp_dir().join(format!("courser-own-{}", std::process::id()));
    let options = ShmOptions { dir: Some(ours.clone()), ..ShmOptions::default() };
    let config = Config { transport: OptionSet::new().with(options), ..Config::default() };
    let server = shm_server(config);
    let reason = |dir: &std::path::Path| {
        let mut client = Command::new(std::env::current_exe().unwrap());
        client.args(["--ignored", "--exact", "--nocapture", "shm::foreign_process"]);
        client.env("COURSER_SHM_DIR", dir).env(FOREIGN, &server.uri).uid(65_534).gid(65_534);
        let output = client.current_dir("/").output().ok()?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
        Some(out.lines().find(|line| line.contains("refused: ")).unwrap().to_owned())
    };
    // In the directory of the server, and in one of its own.
    let (Some(there), Some(here)) = (reason(&ours), reason(&theirs)) else {
        return println!("skipped: another user may not run this program");
    };
    let _ = std::fs::remove_dir_all(&theirs);
    drop(server);
    let _ = std::fs::remove_dir_all(&ours);
    assert!(there.contains("belongs to another user"), "{there}");
    for word in ["nothing listens on shm://", "as this user", "COURSER_SHM_DIR"] {
        assert!(here.contains(word), "{here}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_of_the_system_with_its_name() {
    let options = ShmOptions { dir: Some("/proc/courser".into()), ..ShmOptions::default() };
    let config = Config { transport: OptionSet::new().with(options), ..Config::default() };
    let error = Nexus::bind_with(SHM, config).map(drop).unwrap_err().to_string();
    assert!(error.contains("cannot make the directory /proc/courser"), "{error}");
    assert!(error.contains("COURSER_SHM_DIR"), "{error}");
}
