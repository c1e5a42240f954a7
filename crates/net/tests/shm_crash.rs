//! A process that is killed during traffic over shared memory, and its successor.
//!
//! The other process is this test program again, running the ignored test below. It ends when its
//! standard input is closed, so that it does not outlive the test. This is a program of its own
//! because it counts the mappings of the whole process.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use courser_buf::{Addr, Arena, PacketAccess, PathId, RxBurst, TxBurst, TxFrame};
use courser_net::{ShmConfig, ShmTransport, Transport};

const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the other process: directory, its port, the port of this process.
const ROLE: &str = "COURSER_TEST_SHM_CRASH";

fn bind(dir: &str, port: u16) -> ShmTransport {
    let cfg = ShmConfig { dir: Some(dir.into()), port, ..ShmConfig::default() };
    ShmTransport::bind(&cfg).expect("an endpoint")
}

/// Frame `number` contains its number and the count of frames that its sender has received.
fn send(t: &mut ShmTransport, path: PathId, arena: &Arena, number: u64, received: u64) {
    let mut buf = arena.alloc(16 + (number as usize * 61) % 3000).expect("memory");
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = (number as usize + i * 3) as u8);
    buf[..8].copy_from_slice(&number.to_ne_bytes());
    buf[8..16].copy_from_slice(&received.to_ne_bytes());
    let frame = TxFrame::one(path, buf.data_seg(0..buf.len()).expect("all of it"));
    t.tx_burst(&mut TxBurst::from([frame]));
}

/// One burst, whose frames must be intact: their number, and the largest count in them.
fn receive(t: &mut ShmTransport) -> (u64, u64) {
    let mut out = RxBurst::new();
    t.rx_burst(&mut out);
    let mut largest = 0;
    let mut room = Vec::new();
    for frame in &out {
        let frame = frame.join(&mut room);
        let word = |at: usize| u64::from_ne_bytes(*frame.data[at..].first_chunk().expect("a word"));
        let number = word(0);
        assert_eq!(frame.data.len(), 16 + (number as usize * 61) % 3000, "frame {number}");
        let tail = frame.data.iter().enumerate().skip(16);
        assert!(tail.into_iter().all(|(i, &b)| b == (number as usize + i * 3) as u8));
        largest = largest.max(word(8));
    }
    (out.len() as u64, largest)
}

#[test]
#[ignore = "the other process of the test below"]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [dir, own, theirs] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            stop.store(true, Ordering::Relaxed);
        });
        let mut t = bind(dir, own.parse().expect("a port"));
        let to = Addr { port: theirs.parse().expect("a port"), ..t.local_addr() };
        let path = t.path_open(to, None).expect("a path").id;
        let (arena, mut received) = (Arena::heap(), 0);
        for number in 0.. {
            send(&mut t, path, &arena, number, received);
            received += receive(&mut t).0;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
    });
}

/// The other process, which is killed when this is dropped.
struct Other(Child);

impl Other {
    fn start(dir: &str, own: u32, theirs: u32) -> Other {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "other_process"])
            .env(ROLE, format!("{dir} {own} {theirs}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Other(child.expect("another process"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rings that this process has mapped.
fn rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.lines().filter(|line| line.contains("memfd:courser-ring")).count()
}

#[test]
fn a_process_is_killed_while_frames_pass_and_its_successor_is_found() {
    let dir = std::env::temp_dir().join(format!("courser-crash-{}", std::process::id()));
    let dir = dir.to_str().expect("a name").to_owned();
    let mut t = bind(&dir, 0);
    // A free port, which each successor of the other process binds.
    let to = bind(&dir, 0).local_addr();
    let path = t.path_open(to, None).expect("a path").id;
    let (arena, mut number) = (Arena::heap(), 0);
    for round in 0..4 {
        let other = Other::start(&dir, to.port, t.local_addr().port);
        let (mut got, mut arrived) = (0, 0);
        let end = Instant::now() + PATIENCE;
        while got < 2000 || arrived < 2000 {
            send(&mut t, path, &arena, number, got);
            number += 1;
            let (n, s) = receive(&mut t);
            (got, arrived) = (got + n, arrived.max(s));
            assert!(
                Instant::now() < end,
                "round {round}: {got} received, {arrived} sent ones arrived"
            );
        }
        assert_eq!(rings(), 3, "one to it, one from it, mapped in two protections");
        // Both rings contain frames; the last may be half written.
        drop(other);
        let end = Instant::now() + PATIENCE;
        while rings() > 0 {
            // The end of the other process is detected with and without sending.
            if round % 2 == 0 {
                send(&mut t, path, &arena, number, 0);
            }
            receive(&mut t);
            assert!(Instant::now() < end, "round {round}: {} rings stay", rings());
        }
        let before = t.stats();
        send(&mut t, path, &arena, number, 0);
        assert_eq!(t.stats().tx_dropped, before.tx_dropped + 1, "no receiver exists");
    }
    drop(t);
    std::fs::remove_dir_all(dir).expect("no other test uses it");
}
