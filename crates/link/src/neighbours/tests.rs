use super::*;

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

fn ip(number: u32) -> IpAddr {
    IpAddr::V4((0x0a00_0000 + number).into())
}

/// Takes over a change, and returns the packets released.
fn update(table: &mut Neighbours, number: u32, change: Change, now: Instant) -> Vec<(Mac, u8)> {
    let mut released = Vec::new();
    table.update(0, ip(number), change, now, &mut |mac, packet| released.push((mac, packet[0])));
    released
}

fn find(
    table: &mut Neighbours,
    number: u32,
    packet: u8,
    now: Instant,
) -> Result<Found, Unreachable> {
    table.find(0, ip(number), &[packet], now)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn packets_wait_for_an_address_in_order_within_a_limit() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Resolve));
    let packets = WAITING_PER_NEIGHBOUR as u8;
    for packet in 1..packets {
        assert_eq!(find(&mut table, 1, packet, now), Ok(Found::Waits));
    }
    assert_eq!(find(&mut table, 1, packets, now), Err(Unreachable::NoRoom));
    assert_eq!(update(&mut table, 1, Change::Incomplete, now), []);
    assert_eq!(update(&mut table, 1, Change::Gone, now), []);
    assert!(table.is_resolving());
    let released = update(&mut table, 1, Change::Known(MACS[0]), now);
    assert_eq!(released, (0..packets).map(|packet| (MACS[0], packet)).collect::<Vec<_>>());
    assert!(!table.is_resolving());
    assert_eq!(find(&mut table, 1, 4, now), Ok(Found::Send(MACS[0])));
    assert_eq!(update(&mut table, 1, Change::Known(MACS[1]), now), []);
    assert_eq!(find(&mut table, 1, 4, now), Ok(Found::Send(MACS[1])));
    // Another port's neighbour is another one.
    assert_eq!(table.find(1, ip(1), &[0], now), Ok(Found::Resolve));
    assert_eq!(table.unresolved, 0);
}

#[test]
fn neighbours_being_resolved_have_a_limit() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    for number in 0..RESOLVING as u32 {
        assert_eq!(find(&mut table, number, 0, now), Ok(Found::Resolve));
    }
    assert_eq!(find(&mut table, 1000, 0, now), Err(Unreachable::NoRoom));
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Waits));
    // Other ports have a limit of their own.
    assert_eq!(table.find(1, ip(1000), &[0], now), Ok(Found::Resolve));
    update(&mut table, 7, Change::Known(MACS[0]), now);
    assert_eq!(find(&mut table, 1000, 0, now), Ok(Found::Resolve));
    table.clear(0);
    assert_eq!(table.unresolved, RESOLVING as u64 + 1);
    assert!(table.is_resolving(), "those of the other port remain");
    assert_eq!(table.clear(1), 1);
    assert!(!table.is_resolving());
    // The kernel has not removed this one.
    assert_eq!(table.entries.len(), 1);
    assert_eq!(find(&mut table, 7, 0, now), Ok(Found::Send(MACS[0])));
}

#[test]
fn a_neighbour_fails_when_the_kernel_reports_it_or_does_not_answer() {
    for is_reported in [false, true] {
        let (mut table, start) = (Neighbours::default(), Instant::now());
        assert_eq!(find(&mut table, 1, 0, start), Ok(Found::Resolve));
        assert_eq!(find(&mut table, 1, 0, start), Ok(Found::Waits));
        let failed = if is_reported { start } else { start + RESOLVED_WITHIN };
        if is_reported {
            assert_eq!(update(&mut table, 1, Change::Failed, start), []);
        } else {
            table.expire(failed - Duration::from_nanos(1));
            assert!(table.is_resolving());
            table.expire(failed);
        }
        assert_eq!(table.unresolved, 2);
        assert!(!table.is_resolving());
        let last = failed + FAILED_FOR - Duration::from_nanos(1);
        assert_eq!(find(&mut table, 1, 0, last), Err(Unreachable::Failed));
        assert_eq!(find(&mut table, 1, 0, failed + FAILED_FOR), Ok(Found::Resolve));
        // A later answer is used at once.
        assert_eq!(update(&mut table, 1, Change::Failed, last), []);
        assert_eq!(update(&mut table, 1, Change::Known(MACS[0]), last), []);
        assert_eq!(find(&mut table, 1, 0, last), Ok(Found::Send(MACS[0])));
    }
}

#[test]
fn a_failure_of_a_neighbour_that_is_not_in_use_is_ignored() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    update(&mut table, 1, Change::Failed, now);
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Resolve));
}

#[test]
fn an_old_address_is_used_and_confirmed_once_a_second() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    update(&mut table, 1, Change::Stale(MACS[0]), now);
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Confirm(MACS[0])));
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Send(MACS[0])));
    // The kernel's report that it is still old does not cause another request.
    update(&mut table, 1, Change::Stale(MACS[1]), now);
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Send(MACS[1])));
    assert_eq!(find(&mut table, 1, 0, now + seconds(1)), Ok(Found::Confirm(MACS[1])));
    update(&mut table, 1, Change::Known(MACS[1]), now);
    assert_eq!(find(&mut table, 1, 0, now + seconds(9)), Ok(Found::Send(MACS[1])));
}

#[test]
fn an_address_that_the_kernel_gave_up_is_asked_for_again() {
    for change in [Change::Gone, Change::Incomplete] {
        let (mut table, now) = (Neighbours::default(), Instant::now());
        update(&mut table, 1, Change::Known(MACS[0]), now);
        update(&mut table, 1, change, now);
        assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Resolve));
    }
}

#[test]
fn a_complete_reading_removes_addresses_that_did_not_occur() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    update(&mut table, 1, Change::Known(MACS[0]), now);
    update(&mut table, 2, Change::Known(MACS[0]), now);
    assert_eq!(find(&mut table, 3, 0, now), Ok(Found::Resolve));
    table.begin();
    update(&mut table, 2, Change::Known(MACS[1]), now);
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Send(MACS[0])));
    table.end();
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Resolve));
    assert_eq!(find(&mut table, 2, 0, now), Ok(Found::Send(MACS[1])));
    assert_eq!(find(&mut table, 3, 0, now), Ok(Found::Waits));
}

#[test]
fn a_multicast_address_is_no_neighbour() {
    let (mut table, now) = (Neighbours::default(), Instant::now());
    update(&mut table, 1, Change::Known(Mac([0x33, 0x33, 0, 0, 0, 1])), now);
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Resolve));
}

#[test]
fn a_scan_does_not_fill_the_table_for_ever() {
    let (mut table, mut now) = (Neighbours::default(), Instant::now());
    let mut number = 1000;
    update(&mut table, 1, Change::Known(MACS[0]), now);
    let scan = |table: &mut Neighbours, number: u32, now| {
        let found = find(table, number, 0, now);
        update(table, number, Change::Failed, now);
        found
    };
    while table.entries.len() < NEIGHBOURS {
        assert_eq!(scan(&mut table, number, now), Ok(Found::Resolve));
        number += 1;
    }
    assert_eq!(scan(&mut table, number, now), Err(Unreachable::NoRoom));
    assert_eq!(update(&mut table, 2, Change::Known(MACS[0]), now), []);
    assert_eq!(table.entries.len(), NEIGHBOURS);
    now += seconds(1);
    assert_eq!(scan(&mut table, number, now), Ok(Found::Resolve));
    assert!(table.entries.len() < 10, "those that failed made room");
    assert_eq!(find(&mut table, 1, 0, now), Ok(Found::Send(MACS[0])));
}
