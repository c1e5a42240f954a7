use super::*;
use crate::{MemConfig, MemNetwork, MemTransport};

type Faulty = FaultTransport<MemTransport>;

fn pair(cfg: FaultConfig) -> (Faulty, Faulty, PathId) {
    let net = MemNetwork::new();
    let mem = || net.endpoint(MemConfig { depth: 4096, ..MemConfig::default() }).unwrap();
    let quiet = FaultConfig { seed: cfg.seed, tx: FaultPlan::default(), rx: cfg.rx.clone() };
    let mut a = FaultTransport::new(mem(), FaultConfig { rx: FaultPlan::default(), ..cfg });
    let b = FaultTransport::new(mem(), quiet);
    let path = a.path_open(b.local_addr(), None).unwrap().id;
    (a, b, path)
}

/// Sends frames with the numbers `0..n`, one burst each of `burst`; returns what arrives.
fn carry(cfg: FaultConfig, n: u32, burst: usize) -> (Vec<Vec<u8>>, FaultCounts, FaultCounts) {
    let (mut a, mut b, path) = pair(cfg);
    let arena = Arena::heap();
    let mut got = Vec::new();
    let numbers: Vec<u32> = (0..n).collect();
    for chunk in numbers.chunks(burst) {
        let mut frames: TxBurst = chunk
            .iter()
            .map(|i| {
                let mut m = arena.alloc(4).unwrap();
                m.copy_from_slice(&i.to_be_bytes());
                TxFrame::two(path, m.data_seg(0..1).unwrap(), m.data_seg(1..4).unwrap())
            })
            .collect();
        a.tx_burst(&mut frames);
        assert!(frames.is_empty());
        receive(&mut b, &mut got);
    }
    while a.tx_reclaim() > 0 {}
    for _ in 0..64 {
        receive(&mut b, &mut got);
    }
    (got, a.tx_faults(), b.rx_faults())
}

fn receive(b: &mut Faulty, got: &mut Vec<Vec<u8>>) {
    let mut out = RxBurst::new();
    b.rx_burst(&mut out);
    got.extend(out.iter().map(|f| f.join(&mut Vec::new()).data.to_vec()));
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|f| u32::from_be_bytes(f[..].try_into().unwrap())).collect()
}

fn both(plan: FaultPlan) -> [FaultConfig; 2] {
    let cfg = FaultConfig { seed: 7, ..FaultConfig::default() };
    [FaultConfig { tx: plan.clone(), ..cfg.clone() }, FaultConfig { rx: plan, ..cfg }]
}

#[test]
fn without_faults_every_frame_passes() {
    let (got, tx, rx) = carry(FaultConfig::default(), 300, 32);
    assert_eq!(numbers(&got), (0..300).collect::<Vec<_>>());
    let none = FaultCounts { frames: 300, ..FaultCounts::default() };
    assert_eq!((tx, rx), (none, none));
}

#[test]
fn scripted_faults_happen_to_their_frames() {
    let script = vec![(1, Fault::Drop), (3, Fault::Duplicate), (5, Fault::Delay(2))];
    for cfg in both(FaultPlan { script, ..FaultPlan::default() }) {
        let (got, ..) = carry(cfg, 10, 10);
        assert_eq!(numbers(&got), [0, 2, 3, 3, 4, 6, 7, 5, 8, 9]);
    }
    for cfg in both(FaultPlan { script: vec![(0, Fault::Corrupt(9))], ..FaultPlan::default() }) {
        let (got, ..) = carry(cfg, 2, 2);
        assert_eq!(numbers(&got), [0x0002_0000, 1]);
    }
}

#[test]
fn the_last_frame_is_delayed_but_not_lost() {
    for cfg in both(FaultPlan { script: vec![(0, Fault::Delay(5))], ..FaultPlan::default() }) {
        assert_eq!(numbers(&carry(cfg, 1, 1).0), [0]);
    }
}

#[test]
fn random_faults_follow_the_seed_and_are_counted() {
    let plan = FaultPlan {
        loss_ppm: 100_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 80_000,
        reorder_span: 6,
        corrupt_ppm: 30_000,
        script: Vec::new(),
    };
    for cfg in both(plan) {
        let (got, tx, rx) = carry(cfg.clone(), 4000, 16);
        let (again, ..) = carry(cfg.clone(), 4000, 16);
        assert_eq!(got, again);
        let (other, ..) = carry(FaultConfig { seed: 8, ..cfg.clone() }, 4000, 16);
        assert_ne!(got, other);
        let done = if cfg.tx == FaultPlan::default() { rx } else { tx };
        assert_eq!(got.len() as u64, 4000 - done.lost + done.duplicated);
        // Wide bounds; the seed is fixed.
        for (count, expected) in
            [(done.lost, 400), (done.duplicated, 200), (done.delayed, 320), (done.corrupted, 120)]
        {
            assert!((expected / 3..expected * 2).contains(&count), "{done:?}");
        }
        let order = numbers(&got);
        assert!(order.windows(2).any(|w| w[0] > w[1]));
        assert_eq!(done.overflow, 0);
    }
}

#[test]
fn everything_can_be_lost() {
    for cfg in both(FaultPlan::loss(1_000_000)) {
        assert!(carry(cfg, 100, 10).0.is_empty());
    }
}

#[test]
fn delayed_frames_are_bounded() {
    let plan = FaultPlan { reorder_ppm: 1_000_000, reorder_span: u32::MAX, ..FaultPlan::default() };
    let seed = 7;
    let (mut a, mut b, path) =
        pair(FaultConfig { seed, tx: FaultPlan::default(), rx: plan.clone() });
    let (mut c, _d, to_d) = pair(FaultConfig { seed, tx: plan, rx: FaultPlan::default() });
    let m = Arena::heap().alloc(4).unwrap();
    for _ in 0..200 {
        let frames = (0..50).map(|_| TxFrame::one(path, m.data_seg(0..4).unwrap()));
        a.tx_burst(&mut frames.collect());
        b.rx_burst(&mut RxBurst::new());
        assert!(b.rx.len() <= STORE);
        let frames = (0..50).map(|_| TxFrame::one(to_d, m.data_seg(0..4).unwrap()));
        c.tx_burst(&mut frames.collect());
        assert!(c.tx.len() <= STORE);
    }
    assert!(b.rx_faults().overflow > 0 && c.tx_faults().overflow > 0);
}

#[test]
fn received_frames_without_faults_are_lent_in_place() {
    for (ppm, copied) in [(0, 0), (1, 3)] {
        let cfg = FaultConfig { rx: FaultPlan::loss(ppm), ..FaultConfig::default() };
        let (mut a, mut b, path) = pair(cfg);
        let arena = Arena::heap();
        let frame = |_| TxFrame::one(path, arena.alloc(4).unwrap().data_seg(0..4).unwrap());
        a.tx_burst(&mut (0..3).map(frame).collect());
        let mut got = Vec::new();
        receive(&mut b, &mut got);
        assert_eq!((got.len(), b.lent.len(), b.rx_faults().frames), (3, copied, 3), "{ppm}");
    }
}
