//! Disks that are slow, and followers that lag.

use super::*;

#[test]
fn nothing_is_promised_before_it_is_durable() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    let leader = cluster.leader();
    cluster.disks_work = false;
    let mut write = cluster.put_at(leader, (session, 1), "a", "1");
    let second = cluster.put_at(leader, (session, 2), "a", "2");
    cluster.settle();
    assert_eq!(write.try_recv(), Ok(None));
    // One follower's disk works: with its word there are two of three, of which one is not durable.
    let follower = if leader == 1 { 2 } else { 1 };
    let frame = cluster.node(follower).take_frame().unwrap();
    assert!(cluster.node(follower).take_frame().is_none());
    cluster.node(follower).persisted(frame.number());
    cluster.settle();
    assert_eq!(write.try_recv(), Ok(None));
    let frame = cluster.node(leader).take_frame().unwrap();
    let entries = frame.records.iter().filter(|record| matches!(record, Record::Entry(_)));
    assert_eq!(entries.count(), 2);
    cluster.node(leader).persisted(frame.number());
    cluster.settle();
    assert!(matches!(write.try_recv(), Ok(Some(Ok(Applied::Written(_))))));
    drop(second);
}

#[test]
fn a_lagging_follower_catches_up_by_a_snapshot() {
    for durable in [true, false] {
        let mut cluster = Cluster::new(3, |s| {
            (s.snapshot_entries, s.kept_entries, s.durable) = (50, 10, durable);
        });
        let session = cluster.open();
        let leader = cluster.leader();
        let lagging = if leader == 1 { 2 } else { 1 };
        cluster.cut = vec![lagging];
        for seq in 1..=200 {
            cluster.put((session, seq), &format!("k{seq}"), "value");
        }
        let (first, last) = cluster.node(leader).status().log;
        assert!(first > 100 && last > 200, "{first} to {last}");
        cluster.cut.clear();
        cluster.ticks(20);
        assert_eq!(cluster.node(lagging).counters().snapshots_installed, 1);
        cluster.agree();
        assert_eq!(cluster.node(lagging).store().size().0, 200);
        cluster.put((session, 201), "more", "value");
        cluster.agree();
    }
}

#[test]
fn a_node_does_not_become_a_candidate_while_it_writes_a_received_snapshot() {
    let mut cluster = Cluster::new(3, |s| (s.snapshot_entries, s.kept_entries) = (50, 10));
    let session = cluster.open();
    let leader = cluster.leader();
    let lagging = if leader == 1 { 2 } else { 1 };
    cluster.cut = vec![lagging];
    for seq in 1..=100 {
        cluster.put((session, seq), &format!("k{seq}"), "value");
    }
    cluster.cut.clear();
    cluster.stuck = Some(lagging);
    for _ in 0..200 {
        cluster.ticks(1);
        if cluster.node(lagging).log().base().0 > 50 {
            cluster.cut = vec![lagging];
        }
    }
    assert_eq!(cluster.node(lagging).failed(), None);
    assert_eq!(cluster.node(lagging).status().role, "follower");
    cluster.stuck = None;
    cluster.cut.clear();
    cluster.agree();
    assert_eq!(cluster.node(lagging).counters().snapshots_installed, 1);
}

#[test]
fn the_begin_of_the_log_is_not_durable_while_a_received_snapshot_is_not() {
    let mut cluster = Cluster::new(3, |s| (s.snapshot_entries, s.kept_entries) = (50, 10));
    let session = cluster.open();
    let leader = cluster.leader();
    let lagging = if leader == 1 { 2 } else { 1 };
    assert!(cluster.node(lagging).has_durable_begin());
    cluster.cut = vec![lagging];
    for seq in 1..=100 {
        cluster.put((session, seq), &format!("k{seq}"), "value");
    }
    cluster.cut.clear();
    cluster.stuck = Some(lagging);
    cluster.ticks(40);
    assert!(cluster.node(lagging).log().base().0 > 50);
    assert!(!cluster.node(lagging).has_durable_begin());
    let frame = cluster.node(lagging).take_frame().unwrap();
    assert!(frame.image.is_some() && !cluster.node(lagging).has_durable_begin());
    cluster.node(lagging).persisted(frame.number());
    assert!(cluster.node(lagging).has_durable_begin());
}

#[test]
fn the_log_in_memory_is_bounded_by_bytes_and_a_follower_that_lags_gets_a_snapshot() {
    const SNAPSHOT: usize = 4 << 20;
    let mut cluster = Cluster::new(3, |s| s.snapshot_bytes = SNAPSHOT);
    let session = cluster.open();
    let leader = cluster.leader();
    let lagging = if leader == 1 { 2 } else { 1 };
    cluster.cut = vec![lagging];
    let value = "x".repeat(256 << 10);
    // The part that is kept, the one since the snapshot, and the entry that exceeds it.
    let limit = SNAPSHOT / 2 + SNAPSHOT + (257 << 10);
    for seq in 1..=100 {
        cluster.put((session, seq), &format!("k{}", seq % 3), &value);
        for node in cluster.nodes.values() {
            assert!(node.log().bytes() <= limit, "{} bytes", node.log().bytes());
        }
    }
    let status = cluster.node(leader).status();
    assert_eq!(status.log_bytes as usize, cluster.node(leader).log().bytes());
    assert!((4..=8).contains(&status.counters.snapshots_made), "{status:?}");
    // Some entries are kept for followers that are a little behind.
    assert!(status.log.0 < status.snapshot && status.snapshot - status.log.0 < 8, "{status:?}");
    cluster.cut.clear();
    cluster.ticks(20);
    assert_eq!(cluster.node(lagging).counters().snapshots_installed, 1);
    cluster.agree();
}

#[test]
fn a_node_takes_no_more_entries_while_its_snapshot_is_not_written() {
    const SNAPSHOT: usize = 4 << 20;
    for leads in [true, false] {
        let mut cluster = Cluster::new(3, |s| s.snapshot_bytes = SNAPSHOT);
        let session = cluster.open();
        let leader = cluster.leader();
        let other = if leader == 1 { 2 } else { 1 };
        let slow = if leads { leader } else { other };
        cluster.unsaved = Some(slow);
        let value = "x".repeat(256 << 10);
        let (mut refused, mut most) = (0, 0);
        for seq in 1..=100 {
            let mut result = cluster.put_at(leader, (session, seq), "k", &value);
            cluster.settle();
            refused += u32::from(result.try_recv() == Ok(Some(Err(Refused::Busy))));
            most = most.max(cluster.node(slow).log().bytes());
        }
        assert!((3 * SNAPSHOT..4 * SNAPSHOT).contains(&most), "{most} bytes");
        assert_eq!(
            (refused > 0, cluster.node(slow).counters().messages_dropped > 0),
            (leads, !leads)
        );
        cluster.unsaved = None;
        cluster.ticks(20);
        cluster.put((session, 101), "k", "last");
        cluster.agree();
        assert!(cluster.node(slow).log().bytes() < 2 * SNAPSHOT);
    }
}

#[test]
fn a_leader_bounds_the_bytes_that_are_not_committed() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    let leader = cluster.leader();
    cluster.cut = (1..=3).filter(|id| *id != leader).collect();
    let value = "x".repeat(crate::command::MAX_VALUE);
    let mut results: Vec<_> =
        (1..60).map(|seq| cluster.put_at(leader, (session, seq), "k", &value)).collect();
    let refused = |result: &mut Written| result.try_recv() == Ok(Some(Err(Refused::Busy)));
    let count = results.iter_mut().filter_map(|result| refused(result).then_some(())).count();
    assert!((25..35).contains(&count), "{count} of 59 writes of 2 MiB are refused");
    assert!(cluster.node(leader).log().bytes() < 80 << 20);
}

#[test]
fn writes_are_answered_while_an_image_is_made() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    let leader = cluster.leader();
    let value = "x".repeat(128 << 10);
    for seq in 1..=20 {
        cluster.put((session, seq), &format!("k{seq:02}"), &value);
    }
    let expected = cluster.node(leader).store().image();
    cluster.unsaved = Some(leader);
    cluster.node(leader).settings.snapshot_entries = 1;
    for seq in 21..=28 {
        assert_eq!(cluster.node(leader).make_snapshot(), Making::Begun);
        cluster.put((session, seq), &format!("k{:02}", 40 - seq), "new");
    }
    cluster.node(leader).settings.snapshot_entries = u64::MAX;
    let image = loop {
        if let Making::Done(image) = cluster.node(leader).make_snapshot() {
            break image;
        }
    };
    assert_eq!(image, expected);
    assert_eq!(cluster.node(leader).make_snapshot(), Making::Idle);
    cluster.node(leader).snapshot_made(image.clone());
    assert_eq!(cluster.node(leader).image(image.at.0), Some(image));
}

#[test]
fn a_node_whose_disk_is_behind_bounds_its_frame_and_catches_up() {
    let mut cluster = Cluster::new(3, |settings| settings.unsynced.entry_bytes = 10_000);
    let session = cluster.open();
    let leader = cluster.leader();
    let slow = if leader == 1 { 2 } else { 1 };
    cluster.ticks(2);
    let writing = cluster.node(slow).take_frame();
    assert!(writing.is_none());
    cluster.stuck = Some(slow);
    let value = "x".repeat(1_000);
    for seq in 1..=100 {
        cluster.put((session, seq), &format!("k{seq}"), &value);
    }
    cluster.ticks(20);
    assert!(cluster.node(slow).counters().messages_dropped > 0);
    let last = cluster.node(slow).log().last();
    assert!(cluster.node(leader).log().last() > last + 50);
    let frame = cluster.node(slow).take_frame().unwrap();
    // The last message that is not dropped has 64 KiB of entries at most.
    assert!(frame.bytes() < 10_000 + (64 << 10), "{} bytes", frame.bytes());
    cluster.node(slow).persisted(frame.number());
    cluster.stuck = None;
    cluster.ticks(20);
    cluster.agree();
}

#[test]
fn a_node_whose_disk_never_answers_bounds_the_messages_that_wait_for_it() {
    for held in [(100, usize::MAX), (u64::MAX, 50_000)] {
        let mut cluster = Cluster::new(3, |settings| {
            (settings.unsynced.steps, settings.unsynced.message_bytes) = held;
        });
        let session = cluster.open();
        let leader = cluster.leader();
        let slow = if leader == 1 { 2 } else { 1 };
        cluster.stuck = Some(slow);
        cluster.put((session, 1), "a", "1");
        for _ in 0..1_000 {
            let mut read = cluster.read_at(leader);
            cluster.settle();
            assert_eq!(read.try_recv(), Ok(Some(Ok(()))));
            let (steps, bytes) = cluster.node(slow).held();
            assert!(steps <= held.0 && bytes <= held.1.saturating_add(2_000), "{steps}, {bytes}");
        }
        cluster.ticks(100);
        assert!(cluster.node(slow).is_stalled());
        assert!(cluster.node(slow).counters().messages_dropped > 400);
        cluster.put((session, 2), "a", "2");
        cluster.stuck = None;
        cluster.agree();
        assert_eq!((cluster.node(slow).is_stalled(), cluster.node(slow).held()), (false, (0, 0)));
    }
}

#[test]
fn a_leader_whose_disk_is_late_stops_leading_and_a_follower_goes_on() {
    for leads in [true, false] {
        let mut cluster = Cluster::new(3, |settings| settings.unsynced.ticks = 50);
        let session = cluster.open();
        let leader = cluster.leader();
        let slow = if leads { leader } else { leader % 3 + 1 };
        cluster.stuck = Some(slow);
        drop(cluster.put_at(leader, (session, 1), "a", "1"));
        cluster.settle();
        let frame = cluster.node(slow).take_frame().unwrap();
        cluster.ticks(49);
        assert_eq!((cluster.leader(), cluster.node(slow).is_stalled()), (leader, false));
        cluster.ticks(30);
        assert_eq!((cluster.leader() != leader, cluster.node(slow).is_stalled()), (leads, leads));
        cluster.stuck = None;
        cluster.node(slow).persisted(frame.number());
        cluster.agree();
        assert!(!cluster.node(slow).is_stalled());
    }
}

#[test]
fn a_leader_whose_disk_never_answers_stops_leading() {
    let mut cluster = Cluster::new(3, |settings| settings.unsynced.steps = 500);
    let session = cluster.open();
    let slow = cluster.leader();
    cluster.stuck = Some(slow);
    let mut last = 0;
    while !cluster.node(slow).is_stalled() {
        last += 1;
        assert!(last < 1_000);
        let written = cluster.put_at(slow, (session, last), "a", &last.to_string());
        cluster.settle();
        drop(written);
    }
    let mut refused = cluster.put_at(slow, (session, last + 1), "a", "refused");
    assert_eq!(refused.try_recv(), Ok(Some(Err(Refused::NotLeader { leader: None }))));
    cluster.ticks(60);
    assert_ne!(cluster.leader(), slow);
    cluster.put((session, last + 2), "a", "new");
    assert!(cluster.node(slow).held().0 < 510);
    cluster.stuck = None;
    cluster.agree();
    assert_eq!(cluster.node(slow).store().get(b"a").unwrap(), b"new");
}

#[test]
fn a_leader_whose_disk_hangs_between_two_frames_stops_leading() {
    let mut cluster = Cluster::new(3, |settings| settings.unsynced.ticks = 50);
    let session = cluster.open();
    let slow = cluster.leader();
    // The frame is not even taken.
    cluster.stuck = Some(slow);
    drop(cluster.put_at(slow, (session, 1), "a", "1"));
    cluster.settle();
    cluster.ticks(49);
    assert_eq!((cluster.leader(), cluster.node(slow).is_stalled()), (slow, false));
    cluster.ticks(30);
    assert!(cluster.leader() != slow && cluster.node(slow).is_stalled());
    cluster.stuck = None;
    cluster.agree();
}

#[test]
fn the_state_of_a_node_names_a_disk_that_does_not_answer() {
    for leads in [true, false] {
        let mut cluster = Cluster::new(3, |settings| settings.unsynced.ticks = 80);
        let session = cluster.open();
        let leader = cluster.leader();
        let slow = if leads { leader } else { leader % 3 + 1 };
        let note = |cluster: &mut Cluster| {
            let status = cluster.node(slow).status();
            (status.role.clone(), status.disk_wait_ms(), status.note)
        };
        let role = if leads { "leader" } else { "follower" }.to_owned();
        assert_eq!(note(&mut cluster), (role.clone(), 0, None));
        cluster.stuck = Some(slow);
        drop(cluster.put_at(leader, (session, 1), "a", "1"));
        cluster.settle();
        let frame = cluster.node(slow).take_frame().unwrap();
        // 25 ms each. The first one begins the time.
        cluster.ticks(40);
        assert_eq!(note(&mut cluster), (role.clone(), 975, None));
        cluster.ticks(21);
        let text =
            "waits for its disk for 1.5 s: the disk does not answer; see that it works".to_owned();
        assert_eq!(note(&mut cluster), (role.clone(), 1_500, Some(text)));
        cluster.ticks(100);
        let (role, text) = match leads {
            true => ("stalled", "stalled for 2.0 s: the disk does not answer; see that it works"),
            false => (
                "follower",
                "waits for its disk for 4.0 s: the disk does not answer; see that it works",
            ),
        };
        assert_eq!(note(&mut cluster), (role.to_owned(), 4_000, Some(text.to_owned())));
        assert_eq!(cluster.node(slow).status().stalls(), u64::from(leads));
        cluster.stuck = None;
        cluster.node(slow).persisted(frame.number());
        cluster.agree();
        let (role, wait_ms, text) = note(&mut cluster);
        assert_eq!((&role[..], wait_ms, text), ("follower", 0, None));
    }
}

#[test]
fn a_retry_of_a_write_that_is_not_applied_has_no_entry_of_its_own() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    let leader = cluster.leader();
    cluster.cut = (1..=3).filter(|id| *id != leader).collect();
    let mut attempts: Vec<_> =
        (0..5).map(|_| cluster.put_at(leader, (session, 1), "a", "1")).collect();
    let other = cluster.put_at(leader, (session, 2), "b", "1");
    cluster.settle();
    let last = cluster.node(leader).log().last();
    let mut retry = attempts.pop().unwrap();
    for mut attempt in attempts {
        let replaced = Refused::NotLeader { leader: None };
        assert_eq!(attempt.try_recv(), Ok(Some(Err(replaced))));
    }
    assert_eq!(retry.try_recv(), Ok(None));
    cluster.cut.clear();
    cluster.ticks(4);
    for (mut result, index) in [(retry, last - 1), (other, last)] {
        let written = crate::command::Written { index, changed: true };
        assert_eq!(result.try_recv(), Ok(Some(Ok(Applied::Written(written)))));
    }
    // It is applied, so a further retry is proposed, and has the same result.
    let mut late = cluster.put_at(leader, (session, 2), "b", "1");
    cluster.settle();
    let written = crate::command::Written { index: last, changed: true };
    assert_eq!(late.try_recv(), Ok(Some(Ok(Applied::Written(written)))));
    assert_eq!(cluster.node(leader).log().last(), last + 1);
}
