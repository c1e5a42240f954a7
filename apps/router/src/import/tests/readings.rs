//! Readings of the table, changes that are lost, and the daemon's end.

use serde_json::json;

use super::*;

#[test]
fn after_an_overflow_only_what_differs_changes() {
    let routes = many(300);
    let mut world = World::new(&routes.iter().map(|text| &text[..]).collect::<Vec<_>>());
    assert_eq!(world.settle().len(), 300);
    {
        let mut model = world.model.borrow_mut();
        model.routes.remove(7);
        model.routes[200] = spec("20.0.201.0/24 lan0@10.0.1.8");
        model.routes.push(spec("20.9.0.0/24 lan1"));
        model.queue.push_back(Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
    }
    let mut changes = world.settle();
    changes.sort_unstable();
    let expected =
        ["20.0.201.0/24 via a:lan0@10.0.1.8", "20.0.7.0/24 gone", "20.9.0.0/24 via a:lan1"];
    assert_eq!(changes, expected);
    assert_eq!((world.import.counters().overflows, world.import.counters().readings), (1, 2));
}

#[test]
fn a_reading_that_was_interrupted_removes_nothing_and_is_repeated() {
    let mut world = World::new(&["20.1.0.0/16 lan0", "20.2.0.0/16 lan0"]);
    world.settle();
    world.model.borrow_mut().interrupt = true;
    world.model.borrow_mut().routes.push(spec("20.3.0.0/16 lan0"));
    world.import.is_outdated = true;
    assert_eq!(world.settle(), ["20.3.0.0/16 via a:lan0"]);
    assert_eq!(world.model.borrow().readings, 3);
}

#[test]
fn an_overflow_during_a_reading_leads_to_another_one() {
    let mut world = World::new(&["20.1.0.0/16 lan0"]);
    world.model.borrow_mut().queue.push_back(Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0"]);
    assert_eq!(world.model.borrow().readings, 2);
}

#[test]
fn a_change_that_is_reported_during_a_reading_is_newer() {
    let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9"]);
    let newer = added("20.1.0.0/16 lan0@10.0.1.8", NLM_F_REPLACE);
    world.model.borrow_mut().meanwhile = Some((Part::V4, newer));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.8"]);
    assert_eq!(world.model.borrow().readings, 1);
    // A removal, too: the reading still has the route.
    let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9"]);
    world.settle();
    let removal = deleted("20.1.0.0/16 lan0@10.0.1.9");
    world.model.borrow_mut().meanwhile = Some((Part::V4, removal));
    world.import.is_outdated = true;
    assert_eq!(world.settle(), ["20.1.0.0/16 gone"]);
    assert_eq!(world.model.borrow().readings, 2);
}

#[test]
fn a_route_that_is_reported_during_a_reading_stays_although_the_reading_lacks_it() {
    let (v4, v6) = ("20.1.0.0/16 lan0@10.0.1.9", "2001:db8::/32 lan0@fd00:1::8 lan0@fd00:1::9");
    let mut world = World::new(&[v4, v6]);
    world.settle();
    // Removed silently, and added again while the table is read.
    world.model.borrow_mut().routes.remove(0);
    world.model.borrow_mut().meanwhile = Some((Part::V4, added(v4, NLM_F_CREATE)));
    world.import.is_outdated = true;
    assert_eq!(world.settle(), [""; 0]);
    // One next hop of several is removed.
    world.model.borrow_mut().routes = vec![spec(v4), spec("2001:db8::/32 lan0@fd00:1::9")];
    let removal = deleted("2001:db8::/32 lan0@fd00:1::8");
    world.model.borrow_mut().meanwhile = Some((Part::V4, removal));
    world.import.is_outdated = true;
    assert_eq!(world.settle(), ["2001:db8::/32 via a:lan0@fd00:1::9"]);
    assert_eq!(world.model.borrow().readings, 3);
}

#[test]
fn a_route_that_is_reported_while_a_reading_is_taken_over_stays() {
    let routes = many(300);
    let mut world = World::new(&routes.iter().map(|text| &text[..]).collect::<Vec<_>>());
    world.settle();
    let removed = world.model.borrow_mut().routes.pop().expect("300 routes");
    world.import.is_outdated = true;
    while world.import.walk.is_none() {
        world.now_ns += MS;
        world.pass();
    }
    world.now_ns += MS;
    world.model.borrow_mut().routes.push(removed);
    world.report(added(&routes[299], NLM_F_CREATE));
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.announced(), 300);
}

#[test]
fn removals_of_ipv6_routes_during_a_reading_lead_to_another_one() {
    let gone = "2001:db8::/32 lan0@fd00:1::9";
    let mut world = World::new(&[gone, "2001:db9::/32 lan0@fd00:1::9"]);
    world.settle();
    {
        // Linux leaves out the next route.
        let mut model = world.model.borrow_mut();
        model.meanwhile = Some((Part::V6, deleted(gone)));
        model.omits = 1;
        model.routes.remove(0);
    }
    world.import.is_outdated = true;
    assert_eq!(world.settle(), ["2001:db8::/32 gone"]);
    assert_eq!(world.model.borrow().readings, 3);
}

#[test]
fn what_the_kernel_removes_silently_is_noticed() {
    let address = || {
        let message = netlink_packet_route::address::AddressMessage::default();
        bytes(RouteNetlinkMessage::DelAddress(message).into(), 0, 0)
    };
    let down = || bytes(link(LAN0, "lan0", false).into(), 0, 0);
    for silent in [&down as &dyn Fn() -> Vec<u8>, &address] {
        let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9", "20.2.0.0/16 lan1"]);
        world.settle();
        world.model.borrow_mut().routes.remove(0);
        world.report(silent());
        assert_eq!(world.settle(), ["20.1.0.0/16 gone"]);
    }
    // An interface that is no port has no routes here.
    let mut world = World::new(&[]);
    world.settle();
    world.report(bytes(link(OTHER, "x", false).into(), 0, 0));
    world.settle();
    assert_eq!(world.model.borrow().readings, 1);
}

#[test]
fn an_interface_that_is_made_again_keeps_its_port() {
    let mut world = World::new(&["20.1.0.0/16 lan1"]);
    world.settle();
    let gone = match link(LAN0, "lan0", false) {
        RouteNetlinkMessage::NewLink(link) => RouteNetlinkMessage::DelLink(link),
        _ => unreachable!(),
    };
    {
        let mut model = world.model.borrow_mut();
        model.lan0 = Some(OTHER);
        model.routes = vec![spec("20.1.0.0/16 lan1"), spec("20.2.0.0/16 x@10.0.1.9")];
    }
    world.report(bytes(gone.into(), 0, 0));
    world.report(bytes(link(OTHER, "lan0", true).into(), 0, 0));
    world.report(added("20.2.0.0/16 x@10.0.1.9", NLM_F_CREATE));
    world.run(5);
    assert_eq!(world.find("20.2.0.1"), "20.2.0.0/16 via a:lan0@10.0.1.9");
}

#[test]
fn a_next_hop_object_that_changes_or_vanishes_leads_to_a_reading() {
    let object = |kind: u16, flags: u16, id: u32| {
        let head = [&32_u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
        let attribute =
            [&8_u16.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &id.to_ne_bytes()].concat();
        [&head[..], &[0; 8], &[0; 8], &attribute].concat()
    };
    let route = || {
        let mut route = spec("20.1.0.0/16 lan0").message();
        route.attributes.push(RouteAttribute::NhId(5));
        bytes(RouteNetlinkMessage::NewRoute(route).into(), NLM_F_CREATE, 0)
    };
    let mut world = World::new(&[]);
    world.settle();
    world.report(route());
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0"]);
    for other in [object(105, 0, 6), object(104, NLM_F_CREATE, 7), object(104, NLM_F_REPLACE, 6)] {
        world.report(other);
        assert_eq!(world.settle(), [""; 0]);
    }
    assert_eq!(world.model.borrow().readings, 1);
    world.report(object(105, 0, 5));
    assert_eq!(world.settle(), ["20.1.0.0/16 gone"]);
    world.report(route());
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0"]);
    // A group without the member that was removed is reported as a new one.
    world.model.borrow_mut().routes.push(spec("20.1.0.0/16 lan0@10.0.1.9"));
    world.report(object(104, 0, 5));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.9"]);
    assert_eq!(world.import.counters().malformed, 0);
}

#[test]
fn more_routes_than_the_limit_are_left_out_reported_and_taken_when_there_is_room() {
    let routes = many(1_010);
    let mut world = World::new(&routes.iter().map(|text| &text[..]).collect::<Vec<_>>());
    assert_eq!(world.settle().len(), 1_000);
    let warnings = world.import.take_warnings();
    assert!(warnings[0].contains("has more than 1000 routes"), "{warnings:?}");
    world.model.borrow_mut().routes.drain(..20);
    for text in &routes[..20] {
        world.report(deleted(text));
    }
    world.settle();
    assert_eq!(world.announced(), 980);
    world.now_ns += AGAIN_NS;
    assert_eq!(world.settle().len(), 10);
    assert_eq!((world.announced(), world.import.take_warnings()), (990, vec![]));
}

#[test]
fn a_pass_does_a_bounded_amount_of_work() {
    let routes = many(900);
    let mut world = World::new(&routes.iter().map(|text| &text[..]).collect::<Vec<_>>());
    world.settle();
    assert!(world.most_changes <= MESSAGES, "{}", world.most_changes);
    world.model.borrow_mut().routes.clear();
    world.import.is_outdated = true;
    assert_eq!(world.settle().len(), 900);
    assert!(world.most_changes <= COMPARED, "{}", world.most_changes);
    // Short prefixes have many entries in the tables.
    world.most_changes = 0;
    for n in 20..40 {
        world.report(added(&format!("{n}.0.0.0/8 lan0"), NLM_F_CREATE));
    }
    assert_eq!(world.settle().len(), 20);
    assert_eq!(world.most_changes, 1);
}

#[test]
fn a_reading_that_is_not_answered_is_given_up() {
    let mut world = World::new(&["20.1.0.0/16 lan0"]);
    world.pass();
    world.model.borrow_mut().queue.clear();
    world.import.buffer.clear();
    world.import.at = 0;
    world.run(10);
    world.now_ns += SILENCE_NS;
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0"]);
}

#[test]
fn malformed_messages_are_counted_and_do_no_harm() {
    let valid = [
        added("20.3.0.0/16 lan0@10.0.1.9*2 lan1@10.0.3.9*3", NLM_F_REPLACE),
        added("20.4.0.0/16 lan0@fd00:1::1", NLM_F_CREATE),
        deleted("2001:db9::/32 metric 1024 lan0@fd00:1::8 lan0@fd00:1::9"),
        bytes(link(LAN0, "lan0", true).into(), 0, 0),
        bytes(NetlinkPayload::Done(DoneMessage::default()), NLM_F_MULTIPART, 3),
    ];
    let mut world = World::new(&[]);
    world.settle();
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    for _ in 0..30_000 {
        let mut message = valid[random(valid.len())].clone();
        for _ in 0..=random(4) {
            let at = random(message.len());
            message[at] = if random(2) == 0 { random(256) as u8 } else { 0xff };
        }
        message.truncate(if random(4) == 0 { random(message.len()) } else { message.len() });
        world.report(message);
        world.pass();
        world.now_ns += MS;
    }
    assert!(world.import.counters().malformed > 1_000, "{:?}", world.import.counters());
    world.settle();
    let used = world.import.counters();
    world.import.is_outdated = true;
    world.settle();
    assert_eq!(world.announced(), 0, "the kernel has none: {used:?}");
}

/// A directory with a daemon's socket, whose path is the second value.
fn socket() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("daemon");
    (directory, path)
}

#[test]
fn routes_of_a_daemon_that_ends_are_withdrawn_after_the_grace_time() {
    let (_directory, path) = socket();
    let mut world = World::with(&["20.1.0.0/16 lan0", "20.2.0.0/16 lan0"], |import| {
        import.daemon = Some(path.clone());
        import.grace = Duration::from_millis(2_000);
    });
    assert_eq!(world.settle(), [""; 0], "there is no daemon yet");
    let warnings = world.import.take_warnings();
    assert!(warnings[0].starts_with("no routing daemon answers at"), "{warnings:?}");
    assert!(warnings[0].contains("(No such file or directory"), "{warnings:?}");
    let daemon = UnixListener::bind(&path).expect("binds");
    assert_eq!(world.settle().len(), 2);
    assert_eq!(world.import.stats()["daemon"], "running");
    drop(daemon);
    world.run(1_900);
    assert_eq!((world.changes.len(), &world.import.stats()["daemon"]), (0, &json!("ended")));
    world.run(200);
    assert_eq!(std::mem::take(&mut world.changes), ["20.1.0.0/16 gone", "20.2.0.0/16 gone"]);
    assert_eq!(world.import.take_warnings().len(), 3);
    // Changes of the kernel's table are followed, and used when the daemon is back.
    world.report(added("20.3.0.0/16 lan0", NLM_F_CREATE));
    assert_eq!(world.settle(), [""; 0]);
    std::fs::remove_file(&path).expect("removes");
    let _daemon = UnixListener::bind(&path).expect("binds");
    assert_eq!(world.settle().len(), 3);
}

#[test]
fn a_daemon_that_comes_back_within_the_grace_time_disturbs_nothing() {
    let (_directory, path) = socket();
    let daemon = UnixListener::bind(&path).expect("binds");
    let mut world = World::with(&["20.1.0.0/16 lan0"], |import| {
        import.daemon = Some(path.clone());
        import.grace = Duration::from_millis(2_000);
    });
    assert_eq!(world.settle().len(), 1);
    drop(daemon);
    world.run(1_500);
    std::fs::remove_file(&path).expect("removes");
    let _daemon = UnixListener::bind(&path).expect("binds");
    world.run(5_000);
    assert_eq!(world.changes, [""; 0]);
    assert_eq!(world.import.stats()["daemon"], "running");
}
