//! Disks of hosts: a log that acknowledges what it has synced, under every fault.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use courser::{Local, Nexus, Rpc};
use courser_disk::{File, Storage, conformance};
use courser_sim::fabric::Topology;
use courser_sim::{DiskFaults, HostId, SimDisk, Unsynced, World, WorldConfig};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const APPEND: u16 = 1;
const ECHO: u16 = 2;
const MS: Duration = Duration::from_millis(1);

/// Bytes of a record: a number and its complement, many times, so that records cross sectors.
const RECORD: usize = 200;

fn record(number: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = if at % 2 == 0 { number } else { !number };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn world(seed: u64) -> World {
    World::new(WorldConfig::new(seed, Topology::two_hosts())).unwrap()
}

/// When a server acknowledges a record.
#[derive(Clone, Copy, PartialEq)]
enum Acknowledges {
    Synced,
    /// A planted bug.
    Written,
    /// A planted bug: the name of the log is not made durable.
    Unnamed,
}

/// Opens the log, and cuts what is no record.
fn recover(disk: &SimDisk, how: Acknowledges) -> io::Result<(Box<dyn File>, Vec<u64>)> {
    let file = match disk.open("log") {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let file = disk.create("log")?;
            if how != Acknowledges::Unnamed {
                disk.sync_dir_blocking()?;
            }
            file
        }
        opened => opened?,
    };
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(0, &mut bytes)?;
    let mut numbers = Vec::new();
    for found in bytes.chunks(RECORD) {
        let number = found.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        if found != record(number) {
            break;
        }
        numbers.push(number);
    }
    // After a failed sync of an earlier process they may be in the cache only.
    file.write_at(0, &bytes[..numbers.len() * RECORD])?;
    file.set_len((numbers.len() * RECORD) as u64)?;
    file.sync_blocking()?;
    Ok((file, numbers))
}

/// A server that appends records to a log, and keeps what it found at its start in `found`.
fn server(
    nexus: &Nexus,
    disk: &SimDisk,
    how: Acknowledges,
    found: &RefCell<Vec<u64>>,
) -> Result<Rpc, Box<dyn std::error::Error>> {
    let (file, numbers) = recover(disk, how)?;
    let (file, end) = (Rc::<dyn File>::from(file), Rc::new(Cell::new(numbers.len())));
    *found.borrow_mut() = numbers;
    let mut rpc = nexus.endpoint()?;
    rpc.on_async(APPEND, move |request| {
        let number = u64::from_le_bytes(*request.first_chunk().unwrap());
        let (file, at) = (file.clone(), end.get());
        end.set(at + 1);
        async move {
            let offset = (at * RECORD) as u64;
            let done = match (how, number % 2) {
                (Acknowledges::Written, _) => file.write_at(offset, &record(number)),
                (_, 0) => file.write_and_sync(offset, record(number).to_vec()).await,
                _ => match file.write_at(offset, &record(number)) {
                    Ok(()) => file.sync().await,
                    Err(e) => Err(e),
                },
            };
            vec![u8::from(done.is_ok())]
        }
    });
    rpc.on(ECHO, |cx, request| cx.reply(request));
    Ok(rpc)
}

/// Appends records until the server fails, and keeps those that it acknowledged.
async fn append(local: Local, uri: String, from: u64, acknowledged: Rc<RefCell<BTreeSet<u64>>>) {
    let Ok(session) = local.connect(&uri).await else { return };
    for number in from..from + 1_000 {
        let mut request = local.alloc(8).unwrap();
        request.copy_from_slice(&number.to_le_bytes());
        match session.call(APPEND, request).await {
            Ok(answer) if answer[0] == 1 => acknowledged.borrow_mut().insert(number),
            _ => return,
        };
    }
}

/// The findings of a world of crashes.
struct Shown {
    acknowledged: usize,
    /// Acknowledged records that were not found after a crash.
    missing: usize,
    disk: SimDisk,
    digest: u64,
}

/// Ten crashes of the machine, or of the process, while clients append.
fn crashes(seed: u64, how: Acknowledges, faults: DiskFaults) -> Shown {
    let mut world = world(seed);
    let (disk, uri) = (world.disk(SERVER), world.uri(SERVER));
    disk.set_faults(faults);
    let found = Rc::new(RefCell::new(Vec::new()));
    let (of, to) = (disk.clone(), found.clone());
    world.start(SERVER, move |nexus| server(nexus, &of, how, &to)).unwrap();
    let acknowledged = Rc::new(RefCell::new(BTreeSet::new()));
    let mut missing = 0;
    for turn in 0..10 {
        world.start(CLIENT, Nexus::endpoint).unwrap();
        for task in 0..4 {
            let local = world.rpc(CLIENT).local();
            let from = 1 + 10_000 * turn + 1_000 * task;
            let task = append(local.clone(), uri.clone(), from, acknowledged.clone());
            drop(local.spawn(task));
        }
        let run_us = world.rng().between(500, 6_000);
        world.run_for(Duration::from_micros(run_us));
        if world.rng().chance_ppm(800_000) {
            world.crash(SERVER);
        } else {
            world.kill(SERVER);
        }
        // A sync at the start may fail too.
        while world.restart(SERVER).is_err() {}
        let found: BTreeSet<u64> = found.borrow().iter().copied().collect();
        missing += acknowledged.borrow().difference(&found).count();
        acknowledged.borrow_mut().retain(|number| found.contains(number));
    }
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    let acknowledged = acknowledged.borrow().len();
    Shown { acknowledged, missing, disk, digest: world.digest() }
}

fn torn() -> DiskFaults {
    DiskFaults { unsynced: Unsynced::Torn, ..DiskFaults::default() }
}

#[test]
fn a_simulated_disk_conforms() {
    let mut world = world(1);
    let disk = world.disk(SERVER);
    conformance::check(&disk, || world.run_for(Duration::from_secs(1)));
    assert_eq!(disk.used(), 0, "removed files take no space");
}

#[test]
fn synced_records_are_found_after_every_crash() {
    let (mut acknowledged, mut lost, mut kept, mut failed) = (0, 0, 0, 0);
    for seed in 0..40 {
        let faults = DiskFaults {
            sync_error_ppm: [0, 5_000][seed as usize % 2],
            slow_sync_ppm: 10_000,
            slow_sync_ns: 3_000_000,
            ..DiskFaults::default()
        };
        let shown = crashes(seed, Acknowledges::Synced, faults);
        assert_eq!(shown.missing, 0, "seed {seed}");
        let counts = shown.disk.counts();
        acknowledged += shown.acknowledged;
        lost += counts.sectors_lost;
        kept += counts.sectors_kept;
        failed += counts.failed_syncs;
    }
    println!("{acknowledged} records, {lost} sectors lost, {kept} kept, {failed} syncs failed");
    assert!(acknowledged > 2_000 && lost > 100 && kept > 100 && failed > 10);
}

#[test]
fn a_server_that_does_not_sync_loses_acknowledged_records() {
    for seed in 0..5 {
        let shown = crashes(seed, Acknowledges::Written, torn());
        assert!(shown.missing > 0 && shown.disk.counts().lengths_lost > 0, "seed {seed}");
    }
}

#[test]
fn a_server_that_does_not_sync_the_name_of_its_log_loses_it() {
    let lost = (0..10).filter(|seed| crashes(*seed, Acknowledges::Unnamed, torn()).missing > 0);
    assert!(lost.count() > 3);
}

#[test]
fn worlds_with_disks_are_the_same_for_the_same_seed() {
    let run = |seed| {
        let shown = crashes(seed, Acknowledges::Synced, torn());
        (shown.digest, shown.disk.counts(), shown.disk.durable("log"))
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_killed_process_leaves_what_it_wrote_and_a_crashed_machine_does_not() {
    let mut world = world(3);
    let disk = world.disk(SERVER);
    disk.set_faults(DiskFaults { unsynced: Unsynced::Lost, ..DiskFaults::default() });
    world.start(SERVER, Nexus::endpoint).unwrap();
    let file = disk.create("a").unwrap();
    file.write_at(0, b"written").unwrap();
    let sync = file.sync();
    world.kill(SERVER);
    assert_eq!(sync.wait().unwrap_err().kind(), io::ErrorKind::Interrupted);
    assert!(file.read_at(0, &mut [0; 7]).unwrap_err().to_string().contains("ended"));
    assert_eq!(file.sync().wait().unwrap_err().kind(), io::ErrorKind::Other);
    let again = disk.open("a").unwrap();
    assert_eq!(again.len().unwrap(), 7);
    world.crash(SERVER);
    assert_eq!(disk.list().unwrap(), [""; 0]);
}

#[test]
fn a_slow_sync_does_not_delay_other_calls() {
    let mut world = world(4);
    let disk = world.disk(SERVER);
    let faults = DiskFaults { slow_sync_ppm: 1_000_000, ..DiskFaults::default() };
    let slow = Duration::from_nanos(faults.slow_sync_ns);
    let uri = world.uri(SERVER);
    let of = disk.clone();
    world
        .start(SERVER, move |nexus| server(nexus, &of, Acknowledges::Synced, &RefCell::default()))
        .unwrap();
    disk.set_faults(faults);
    world.start(CLIENT, Nexus::endpoint).unwrap();
    let local = world.rpc(CLIENT).local();
    let acknowledged = Rc::new(RefCell::new(BTreeSet::new()));
    drop(local.spawn(append(local.clone(), uri.clone(), 1, acknowledged.clone())));
    let echoes = Rc::new(Cell::new(0));
    let count = echoes.clone();
    let calls = local.clone();
    drop(local.spawn(async move {
        let session = calls.connect(&uri).await.unwrap();
        loop {
            session.call(ECHO, calls.alloc(8).unwrap()).await.unwrap();
            count.set(count.get() + 1);
        }
    }));
    let first = |_: &mut World| !acknowledged.borrow().is_empty();
    assert!(world.run_until(10 * MS + 2 * slow, first));
    assert!(world.now_ns() >= slow.as_nanos() as u64 && disk.counts().slow_syncs > 0);
    assert!(echoes.get() > 1_000, "{} echoes during a sync", echoes.get());
}

#[test]
fn a_blocking_sync_keeps_its_thread_busy() {
    let mut world = world(5);
    let disk = world.disk(SERVER);
    disk.set_faults(DiskFaults { sync_ns: (5_000_000, 5_000_000), ..DiskFaults::default() });
    let uri = world.uri(SERVER);
    let of = disk.clone();
    let setup = move |nexus: &Nexus| {
        let file = of.create("a").unwrap();
        let mut rpc = nexus.endpoint()?;
        rpc.on(APPEND, move |cx, request| {
            file.write_at(0, &request).unwrap();
            file.sync_blocking().unwrap();
            cx.reply(request)
        });
        Ok::<_, courser::BindError>(rpc)
    };
    world.start(SERVER, setup).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    let local = world.rpc(CLIENT).local();
    let took = Rc::new(Cell::new(0));
    let set = took.clone();
    drop(local.clone().spawn(async move {
        let session = local.connect(&uri).await.unwrap();
        let began_ns = local.now_ns();
        session.call(APPEND, local.alloc(8).unwrap()).await.unwrap();
        set.set(local.now_ns() - began_ns);
    }));
    assert!(world.run_until(100 * MS, |_| took.get() > 0));
    assert!((5_000_000..6_000_000).contains(&took.get()), "{} ns", took.get());
}

#[test]
fn a_full_disk_takes_overwrites_and_what_fits() {
    let mut world = world(6);
    let disk = world.disk(SERVER);
    let file = disk.create("a").unwrap();
    file.write_at(0, &[1; 1_000]).unwrap();
    disk.set_capacity(2_048);
    assert_eq!(disk.used(), 1_024);
    let full = file.write_at(1_000, &[2; 2_000]).unwrap_err();
    assert_eq!((full.kind(), file.len().unwrap()), (io::ErrorKind::StorageFull, 2_048));
    file.write_at(0, &[3; 2_048]).unwrap();
    let errors = [
        file.write_at(2_048, &[4]),
        file.write_at(9_000, &[4]),
        file.set_len(2_049),
        disk.create("b").map(drop),
    ];
    let appended = file.write_and_sync(2_048, vec![4]);
    world.run_for(MS);
    for result in errors.into_iter().chain([appended.wait()]) {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!((file.len().unwrap(), disk.counts().full), (2_048, 6));
    assert_eq!(file.write_at(u64::MAX, &[4]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    // Removed, it takes its space until it is closed.
    disk.remove("a").unwrap();
    assert!(disk.create("b").is_err());
    drop(file);
    disk.create("b").unwrap().write_at(0, &[5; 2_048]).unwrap();
}

#[test]
fn a_failed_sync_is_final_for_its_handle_and_its_data_is_lost_silently() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut world = world(seed);
        let disk = world.disk(SERVER);
        let file = disk.create("a").unwrap();
        disk.sync_dir_blocking().unwrap();
        file.write_at(0, &[1; 4_096]).unwrap();
        disk.fail_syncs(1);
        let failed = file.sync();
        world.run_for(MS);
        assert_eq!(failed.wait().unwrap_err().kind(), io::ErrorKind::Other);
        let final_error = file.sync_blocking().unwrap_err();
        assert!(final_error.to_string().contains("earlier sync"), "{final_error}");
        // A new handle is not told.
        let other = disk.open("a").unwrap();
        other.sync_blocking().unwrap();
        let mut bytes = [0; 4_096];
        other.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 4_096]);
        world.crash(SERVER);
        lost += usize::from(disk.durable("a").unwrap() != [1; 4_096]);
    }
    assert!(lost > 10, "{lost} of 20");
}

#[test]
fn rot_flips_bits_of_durable_data() {
    let mut world = world(9);
    let disk = world.disk(SERVER);
    disk.set_faults(DiskFaults { rot_ppm: 100_000, ..DiskFaults::default() });
    let file = disk.create("a").unwrap();
    file.write_at(0, &[0; 512 * 1_000]).unwrap();
    file.sync_blocking().unwrap();
    disk.sync_dir_blocking().unwrap();
    world.crash(SERVER);
    let bytes = disk.durable("a").unwrap();
    let flipped: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(u64::from(flipped), disk.counts().flipped_bits);
    assert!((50..150).contains(&flipped), "{flipped} of 1,000 sectors");
    assert!(disk.flip_bit("a", 0) && !disk.flip_bit("a", 8 * 512_000) && !disk.flip_bit("b", 0));
    assert_eq!(disk.durable("a").unwrap()[0], bytes[0] ^ 1);
    assert!(Arc::new(disk).open("a").is_ok());
}
