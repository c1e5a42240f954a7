//! The conformance suite against every transport of this crate.

use courser_net::{
    DelayedCompletion, DelayedCompletionConfig, FaultConfig, FaultTransport, MemConfig, MemNetwork,
    MemTransport, Offload, ShmConfig, ShmTransport, UdpConfig, UdpTransport, conformance,
};

fn udp(bind: &str, change: impl Fn(&mut UdpConfig)) -> UdpTransport {
    let mut cfg = UdpConfig::new(bind.parse().expect("an address"));
    change(&mut cfg);
    UdpTransport::bind(cfg).expect("a loopback socket")
}

fn mem_pair() -> (MemTransport, MemTransport) {
    let net = MemNetwork::new();
    let endpoint = || net.endpoint(MemConfig::default()).expect("an endpoint");
    (endpoint(), endpoint())
}

fn run_udp(bind: &str, change: impl Fn(&mut UdpConfig)) {
    conformance::run(|| (udp(bind, &change), udp(bind, &change)));
}

#[test]
fn udp_over_ipv4() {
    run_udp("127.0.0.1:0", |_| {});
}

#[test]
fn udp_over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this system has no IPv6 loopback");
        return;
    }
    run_udp("[::1]:0", |_| {});
}

#[test]
fn udp_without_offloads() {
    run_udp("127.0.0.1:0", |c| (c.gso, c.gro) = (Offload::Off, Offload::Off));
}

#[test]
fn udp_with_one_offload() {
    run_udp("127.0.0.1:0", |c| c.gso = Offload::Off);
    run_udp("127.0.0.1:0", |c| c.gro = Offload::Off);
}

#[test]
fn udp_with_jumbo_frames() {
    run_udp("127.0.0.1:0", |c| c.max_frame = Some(8972));
}

#[test]
fn udp_with_a_small_receive_buffer() {
    run_udp("127.0.0.1:0", |c| c.rcvbuf_bytes = 106_496);
}

#[test]
fn memory() {
    conformance::run(mem_pair);
}

#[test]
fn memory_with_a_shallow_queue() {
    conformance::run(|| {
        let net = MemNetwork::new();
        let cfg = MemConfig { depth: 16, max_frame: 1024, ..MemConfig::default() };
        let endpoint = || net.endpoint(cfg).expect("an endpoint");
        (endpoint(), endpoint())
    });
}

#[test]
fn held_memory() {
    for reclaims in [None, Some(2)] {
        let cfg = DelayedCompletionConfig { reclaims, ..DelayedCompletionConfig::default() };
        conformance::run(|| {
            let (a, b) = mem_pair();
            (DelayedCompletion::new(a, cfg), DelayedCompletion::new(b, cfg))
        });
    }
}

#[test]
fn held_udp() {
    conformance::run(|| {
        let udp = || udp("127.0.0.1:0", |_| {});
        let hold = |t| {
            DelayedCompletion::new(
                t,
                DelayedCompletionConfig { limit: 100, ..DelayedCompletionConfig::default() },
            )
        };
        (hold(udp()), hold(udp()))
    });
}

#[test]
fn faultless_faults() {
    conformance::run(|| {
        let (a, b) = mem_pair();
        let wrap = |t| FaultTransport::new(t, FaultConfig::default());
        (wrap(a), wrap(b))
    });
}

#[test]
fn any_transport() {
    conformance::run(|| {
        let open = || courser_net::any::open(&"udp://127.0.0.1:0".parse().expect("a spec"));
        (open().expect("a transport"), open().expect("a transport"))
    });
}

/// Two endpoints over shared memory, in a directory of this test run.
fn shm_pair(change: impl Fn(&mut ShmConfig)) -> (ShmTransport, ShmTransport) {
    let dir = std::env::temp_dir().join(format!("courser-test-{}", std::process::id()));
    let mut cfg = ShmConfig { dir: Some(dir), ..ShmConfig::default() };
    change(&mut cfg);
    let endpoint = || ShmTransport::bind(&cfg).expect("an endpoint");
    (endpoint(), endpoint())
}

#[test]
fn shared_memory() {
    conformance::run(|| shm_pair(|_| {}));
}

#[test]
fn shared_memory_with_other_rings() {
    // The slots limit; the data area limits; every frame fits its slot.
    conformance::run(|| shm_pair(|c| (c.slots, c.max_frame) = (16, 1024)));
    conformance::run(|| shm_pair(|c| (c.slots, c.data_bytes, c.max_frame) = (256, 8192, 2000)));
    conformance::run(|| shm_pair(|c| (c.slots, c.data_bytes, c.max_frame) = (32, 4096, 200)));
    conformance::run(|| shm_pair(|c| c.max_frame = 65_536));
}

#[test]
fn shared_memory_of_trusted_pairs() {
    conformance::run(|| shm_pair(|c| c.trust = trust()));
    let trusting = |slots, data_bytes, max_frame| {
        conformance::run(|| {
            shm_pair(|c| {
                c.trust = trust();
                (c.slots, c.data_bytes, c.max_frame) = (slots, data_bytes, max_frame);
            })
        });
    };
    trusting(16, 1 << 20, 1024);
    trusting(256, 8192, 2000);
    trusting(32, 4096, 200);
    trusting(1024, 1 << 20, 65_536);
}

#[test]
fn held_shared_memory_of_trusted_pairs() {
    let cfg = DelayedCompletionConfig { reclaims: Some(2), ..DelayedCompletionConfig::default() };
    conformance::run(|| {
        let (a, b) = shm_pair(|c| c.trust = trust());
        (DelayedCompletion::new(a, cfg), DelayedCompletion::new(b, cfg))
    });
}

#[test]
fn held_shared_memory() {
    for reclaims in [None, Some(2)] {
        let cfg = DelayedCompletionConfig { reclaims, ..DelayedCompletionConfig::default() };
        conformance::run(|| {
            let (a, b) = shm_pair(|_| {});
            (DelayedCompletion::new(a, cfg), DelayedCompletion::new(b, cfg))
        });
    }
}

/// With faults, and many seeds: `shm_faults.rs`.
#[test]
fn faultless_faults_over_shared_memory() {
    conformance::run(|| {
        let (a, b) = shm_pair(|_| {});
        let wrap = |t| FaultTransport::new(t, FaultConfig::default());
        (wrap(a), wrap(b))
    });
}

/// Both ends are threads of this test, which writes to no frame that was sent.
fn trust() -> Option<courser_net::Trust> {
    // SAFETY: as above.
    Some(unsafe { courser_net::Trust::in_peers() })
}
