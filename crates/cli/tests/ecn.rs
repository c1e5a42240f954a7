//! Congestion marks on real sockets: two network namespaces, and a program in the kernel that marks.
//!
//! Needs root, ip(8) and Linux 6.6. Without them the test is skipped and prints the reason.

use std::io::Write;
use std::sync::mpsc;
use std::thread;

use crate::mark::Marks;
use courser::{Config, Control, Nexus, SessionStats};
use courser_bench::netns::{self, DEVICE, Host};

const TYPE: u16 = 1;
/// 45 packets.
const REQUEST: usize = 64 << 10;
const CALLS: usize = 12;

/// Results of a client.
#[derive(Debug)]
struct Seen {
    session: SessionStats,
    /// The smallest window after a call, packets.
    window: Option<u32>,
}

/// Echoes the size of requests on the second host while `client` runs.
fn with_server<R>(host: &Host, v6: bool, client: impl FnOnce(&str) -> R) -> R {
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let server = scope.spawn(move || {
            host.enter().expect("enters");
            let nexus = Nexus::bind(&uri(host, v6)).expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            rpc.on(TYPE, |cx, request| cx.reply(request.len().to_le_bytes().to_vec()));
            sender.send((nexus.local_uri(), rpc.handle())).expect("sent");
            rpc.run().expect("runs");
        });
        let (uri, handle) = receiver.recv().expect("ready");
        let result = client(&uri);
        handle.stop();
        server.join().expect("ends");
        result
    })
}

fn uri(host: &Host, v6: bool) -> String {
    let ip = host.address(v6);
    if v6 { format!("udp://[{ip}]:0") } else { format!("udp://{ip}:0") }
}

/// Calls with large requests from the first host to the second, the packets of requests marked or
/// not.
fn calls(hosts: &[Host; 2], v6: bool, control: Control, marked: bool) -> Seen {
    with_server(&hosts[1], v6, |server| {
        let client = || {
            hosts[0].enter().expect("enters");
            let _marks = marked.then(|| Marks::attach(DEVICE).expect("attaches"));
            let config = Config { control, ..Config::default() };
            let nexus = Nexus::bind_with(&uri(&hosts[0], v6), config).expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            let session = rpc.connect(server).expect("a session");
            rpc.wait_connected(session).expect("connected");
            let mut window = None;
            for _ in 0..CALLS {
                let request = rpc.alloc(REQUEST).expect("memory");
                let done = rpc.call_wait(session, TYPE, request, None).expect("a response");
                assert_eq!(done.response[..], REQUEST.to_le_bytes());
                let now = rpc.session_stats(session).expect("connected").window;
                window = window.min(now).or(now).or(window);
            }
            let session = rpc.session_stats(session).expect("connected");
            Seen { session, window }
        };
        thread::scope(|scope| scope.spawn(client).join().expect("calls"))
    })
}

/// The hosts, or the printed reason why there are none.
fn hosts() -> Option<[Host; 2]> {
    let hosts = netns::pair().map_err(|e| e.to_string());
    let hosts = hosts.and_then(|hosts| {
        let first = &hosts[0];
        let attach =
            || first.enter().map_err(|e| e.to_string()).and_then(|()| Marks::attach(DEVICE));
        thread::scope(|scope| scope.spawn(attach).join().expect("tries"))?;
        Ok(hosts)
    });
    let skipped = |reason: &String| {
        // Not by a macro, whose output the test harness hides when a test passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED: congestion marks on sockets: {reason}");
    };
    hosts.inspect_err(skipped).ok()
}

#[test]
fn marks_of_the_network_lower_the_window_and_without_marks_it_stays() {
    let Some(hosts) = hosts() else { return };
    for v6 in [false, true] {
        let seen = calls(&hosts, v6, Control::default(), true);
        assert!(seen.session.ecn_marked > 0, "{seen:?}");
        assert!(u64::from(seen.session.ecn_marked) <= seen.session.tx_frames, "{seen:?}");
        assert!(seen.session.decreases > 0, "{seen:?}");
        assert!(seen.window.is_some_and(|window| window <= 2), "{seen:?}");

        // Threads that wait for a core delay packets too, which lowers the window on a busy
        // machine: one of several runs is without that.
        let quiet = (0..20).any(|_| {
            let seen = calls(&hosts, v6, Control::default(), false);
            assert_eq!(seen.session.ecn_marked, 0, "{seen:?}");
            seen.session.decreases == 0 && seen.window.is_none()
        });
        assert!(quiet, "the window is lowered without marks");
    }
}

#[test]
fn marks_of_the_network_lower_the_rate_of_dcqcn() {
    let Some(hosts) = hosts() else { return };
    let seen = calls(&hosts, false, Control::Dcqcn, true);
    assert!(seen.session.ecn_marked > 0 && seen.session.decreases > 0, "{seen:?}");
    assert!(seen.session.pacing_gap_ns.is_some(), "{seen:?}");
    // It takes no notice of delays, so this holds on a busy machine too.
    let seen = calls(&hosts, false, Control::Dcqcn, false);
    assert_eq!((seen.session.ecn_marked, seen.session.pacing_gap_ns), (0, None), "{seen:?}");
}
