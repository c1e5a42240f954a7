use proptest::prelude::*;
use serde_bytes::ByteBuf;

use super::making::SLICE;
use super::*;
use crate::command::{Ticket, Unwritten};

fn put(key: &str, value: &str) -> Op {
    Op::Put { key: ByteBuf::from(key), value: ByteBuf::from(value) }
}

fn cas(key: &str, expected: Option<&str>, value: Option<&str>) -> Op {
    let bytes = |text: Option<&str>| text.map(ByteBuf::from);
    Op::Cas { key: ByteBuf::from(key), expected: bytes(expected), value: bytes(value) }
}

/// A store with the index of its last entry.
struct Log(Store, u64);

impl Log {
    fn new() -> Log {
        let members = [(1, "a".to_owned()), (2, "b".to_owned())].into();
        Log(Store::founded(&members), 1)
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.1 += 1;
        self.0.apply((self.1, 1), Some(command), Planted::default())
    }

    fn open(&mut self, now_ms: u64) -> u64 {
        match self.apply(Command::Open { now_ms, ttl_ms: 10_000 }) {
            Applied::Opened(session) => session,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, now_ms: u64, session: u64, seq: u64, first: u64, op: Op) -> Applied {
        self.apply(Command::Write { now_ms, ticket: Ticket { session, seq, first }, op })
    }
}

#[test]
fn a_retry_has_the_first_result_and_changes_nothing() {
    let mut log = Log::new();
    let session = log.open(0);
    let first = log.write(0, session, 1, 1, put("a", "1"));
    log.write(0, session, 2, 1, put("a", "2"));
    assert_eq!(log.write(0, session, 1, 1, put("a", "1")), first);
    assert_eq!(log.0.get(b"a").unwrap(), b"2");
    // The client has the first two results.
    log.write(0, session, 3, 3, put("b", "1"));
    let stale = log.write(0, session, 1, 1, put("a", "1"));
    assert_eq!(stale, Applied::Refused(Unwritten::Stale));
    assert_eq!(log.0.get(b"a").unwrap(), b"2");
}

#[test]
fn a_session_ends_by_the_time_of_the_log_and_its_retries_are_refused() {
    let mut log = Log::new();
    let (idle, busy) = (log.open(0), log.open(0));
    log.write(0, idle, 1, 1, put("a", "1"));
    log.write(9_000, busy, 1, 1, put("b", "1"));
    // A leader whose clock is behind.
    log.write(1, busy, 2, 1, put("b", "2"));
    assert_eq!(log.0.now_ms(), 9_000);
    log.write(10_000, busy, 3, 1, put("b", "3"));
    let retry = log.write(10_000, idle, 1, 1, put("a", "0"));
    assert_eq!(retry, Applied::Refused(Unwritten::Expired));
    assert_eq!((log.0.get(b"a").unwrap(), log.0.sessions()), (&b"1".to_vec(), 1));
    log.apply(Command::Close { session: busy });
    let closed = log.write(10_000, busy, 4, 1, put("a", "0"));
    assert_eq!(closed, Applied::Refused(Unwritten::Expired));
}

#[test]
fn a_session_keeps_a_limited_number_of_results() {
    let mut log = Log::new();
    let session = log.open(0);
    for seq in 1..=SESSION_WINDOW {
        assert!(matches!(log.write(0, session, seq, 1, put("a", "1")), Applied::Written(_)));
    }
    let beyond = log.write(0, session, SESSION_WINDOW + 1, 1, put("a", "1"));
    assert_eq!(beyond, Applied::Refused(Unwritten::Window));
    let later = log.write(0, session, SESSION_WINDOW + 1, 2, put("a", "1"));
    assert!(matches!(later, Applied::Written(_)));
    // A client that claims to have results of writes that it did not send yet.
    let odd = log.write(0, session, SESSION_WINDOW + 5, u64::MAX, put("a", "1"));
    assert!(matches!(odd, Applied::Written(_)), "{odd:?}");
}

#[test]
fn there_is_a_limit_of_sessions() {
    let mut log = Log::new();
    for _ in 0..MAX_SESSIONS {
        log.open(0);
    }
    let refused = log.apply(Command::Open { now_ms: 0, ttl_ms: 1 });
    assert_eq!(refused, Applied::Refused(Unwritten::Sessions));
    log.open(10_000);
    assert_eq!(log.0.sessions(), 1);
}

#[test]
fn cas_and_delete_state_whether_they_changed_something() {
    let mut log = Log::new();
    let session = log.open(0);
    let mut seq = 0;
    let mut changed = |log: &mut Log, op| {
        seq += 1;
        match log.write(0, session, seq, seq, op) {
            Applied::Written(written) => written.changed,
            other => panic!("{other:?}"),
        }
    };
    let delete = || Op::Delete { key: ByteBuf::from("a") };
    assert!(!changed(&mut log, delete()));
    assert!(!changed(&mut log, cas("a", Some("1"), Some("2"))));
    assert!(changed(&mut log, cas("a", None, Some("1"))));
    assert!(!changed(&mut log, cas("a", None, Some("1"))));
    assert!(changed(&mut log, cas("a", Some("1"), Some("22"))));
    assert_eq!(log.0.size(), (1, 3));
    assert!(changed(&mut log, cas("a", Some("22"), None)));
    assert!(changed(&mut log, put("a", "3")) && changed(&mut log, delete()));
    assert_eq!(log.0.size(), (0, 0));
}

#[test]
fn an_image_makes_the_same_store() {
    let mut log = Log::new();
    let session = log.open(0);
    for seq in 1..100 {
        log.write(seq, session, seq, seq.saturating_sub(5), put(&seq.to_string(), "value"));
    }
    let image = log.0.image();
    let mut copy = Log(Store::from_image(&image.bytes).unwrap(), log.1);
    assert_eq!(copy.0.image(), image);
    assert_eq!(copy.0.size(), log.0.size());
    let retry = |log: &mut Log| log.write(100, session, 98, 90, put("98", "again"));
    assert_eq!(retry(&mut copy), retry(&mut log));
    assert_eq!(copy.0.image(), log.0.image());
}

#[test]
fn images_that_are_cut_changed_or_too_large_are_refused_or_bounded() {
    let mut log = Log::new();
    let session = log.open(0);
    for seq in 1..20 {
        log.write(seq, session, seq, seq, put(&seq.to_string(), "value"));
    }
    let bytes = log.0.image().bytes.to_vec();
    for len in 0..bytes.len() {
        assert!(Store::from_image(&bytes[..len]).is_err(), "{len}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let _ = Store::from_image(&changed);
        }
    }
    assert!(Store::from_image(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn a_range_is_ordered_and_ends_before_its_end() {
    let mut log = Log::new();
    let session = log.open(0);
    for (seq, key) in (1..).zip(["c", "a", "d", "b"]) {
        log.write(0, session, seq, seq, put(key, "1"));
    }
    let keys = |from: &str, end: Option<&str>| {
        let range = log.0.range(from.as_bytes(), end.map(str::as_bytes));
        range.map(|(key, _)| String::from_utf8(key.clone()).unwrap()).collect::<String>()
    };
    assert_eq!(keys("", None), "abcd");
    assert_eq!(keys("b", Some("d")), "bc");
    assert_eq!(keys("d", Some("b")), "");
    assert_eq!(keys("b", Some("b")), "");
}

#[test]
fn a_watch_reads_changes_of_its_prefix_and_learns_of_missed_ones() {
    let mut log = Log::new();
    let session = log.open(0);
    let begin = log.1;
    for seq in 1..=10 {
        log.write(0, session, seq, seq, put(&format!("{}{seq}", seq % 2), "1"));
    }
    let changes = log.0.changes();
    let mut seen = Vec::new();
    let mut index = begin;
    while let Ok(change) = changes.next(index, b"1", log.1) {
        index = change.index;
        seen.push(String::from_utf8(change.key.into_vec()).unwrap());
    }
    assert_eq!(seen, ["11", "13", "15", "17", "19"]);
    assert_eq!(changes.next(index, b"1", log.1), Err(log.1));
    for seq in 11..=5_000 {
        log.write(0, session, seq, seq, put("x", "1"));
    }
    let missed = log.0.changes().next(begin, b"x", log.1).unwrap();
    assert_eq!((missed.kind, missed.index), (Kind::Missed, log.1 - 4_096));
    let next = log.0.changes().next(missed.index, b"x", log.1).unwrap();
    assert_eq!((next.kind, next.index), (Kind::Put, missed.index + 1));
}

#[test]
fn addresses_follow_members() {
    let mut log = Log::new();
    let members = |voters: &[u64], learners: &[u64]| Membership {
        voters: voters.into(),
        learners: learners.into(),
    };
    log.0.apply_members((2, 1), members(&[1, 2], &[3]), Some((3, "c".to_owned())));
    log.apply(Command::Address { id: 1, uri: "a2".to_owned() });
    log.apply(Command::Address { id: 9, uri: "x".to_owned() });
    log.0.apply_members((4, 1), members(&[1, 3], &[]), None);
    let known: Vec<_> = log.0.addresses().iter().map(|(id, uri)| (*id, &uri[..])).collect();
    assert_eq!(known, [(1, "a2"), (3, "c")]);
}

/// A store with keys of one byte.
fn small(keys: &[(u8, u8)]) -> Store {
    let mut store = Store::founded(&[(1, "a".to_owned())].into());
    keys.iter().for_each(|write| change(&mut store, *write, 1));
    store
}

/// Removes a key with the value 0, and stores others.
fn change(store: &mut Store, (key, value): (u8, u8), size: usize) {
    let key = vec![key].into();
    store.write(
        1,
        match value {
            0 => Op::Delete { key },
            value => Op::Put { key, value: vec![value; size].into() },
        },
    );
}

proptest! {
    #[test]
    fn an_image_has_the_state_at_its_begin_whatever_is_written_meanwhile(
        first in prop::collection::vec((0..30_u8, 1..9_u8), 0..40),
        slices in prop::collection::vec(prop::collection::vec((0..30_u8, 0..9_u8), 0..6), 0..40),
        budget in 1..400_usize,
    ) {
        let mut store = small(&first);
        let expected = store.image();
        let mut making = store.making();
        let mut writes = slices.into_iter();
        while !making.advance(&store.entries, budget) {
            for (key, value) in writes.next().unwrap_or_default() {
                making.keep(&[key], store.get(&[key]));
                change(&mut store, (key, value), 1);
            }
        }
        prop_assert_eq!(making.end().1, &expected.bytes[..]);
    }
}

#[test]
fn a_slice_is_bounded_and_writes_between_slices_are_not_in_the_image() {
    let mut store = Store::founded(&[(1, "a".to_owned())].into());
    let put = |store: &mut Store, n: u32, value: usize| {
        let key = n.to_be_bytes().to_vec().into();
        store.write(1, Op::Put { key, value: vec![1; value].into() });
    };
    for n in 0..40_000 {
        put(&mut store, n, 60);
    }
    // An entry that is larger than a slice ends one.
    put(&mut store, 20_000, 2 * SLICE);
    let expected = store.image();
    store.begin_image();
    let (mut made, mut slices) = (store.making.as_ref().unwrap().bytes.len(), 0);
    let image = loop {
        if let Some(image) = store.continue_image() {
            break image;
        }
        slices += 1;
        let now = store.making.as_ref().unwrap().bytes.len();
        assert!(now - made <= 3 * SLICE + 16, "a slice has {} bytes", now - made);
        made = now;
        put(&mut store, 39_999 - slices, 1);
        put(&mut store, 50_000 + slices, 1);
    };
    // 40,000 entries of 128 bytes, and one of two slices.
    assert!((19..24).contains(&slices), "{slices} slices");
    assert_eq!(image, expected);
    assert_ne!(store.image(), expected);
    assert!(!store.makes_image() && store.continue_image().is_none());
}

#[test]
fn sessions_are_encoded_in_slices_as_they_were_at_the_begin() {
    let mut log = Log::new();
    let sessions: Vec<u64> = (0..200).map(|_| log.open(0)).collect();
    for seq in 1..=SESSION_WINDOW {
        for session in &sessions {
            log.write(0, *session, seq, 1, put("a", "1"));
        }
    }
    let expected = log.0.image();
    log.0.begin_image();
    let (mut made, mut slices) = (log.0.making.as_ref().unwrap().bytes.len(), 0);
    assert!(made < 1_000, "the begin encodes {made} bytes");
    let image = loop {
        if let Some(image) = log.0.continue_image() {
            break image;
        }
        let now = log.0.making.as_ref().unwrap().bytes.len();
        assert!(now - made <= 2 * SLICE, "a slice has {} bytes", now - made);
        made = now;
        // One that is in the image already, or one that is not: its result is acknowledged, one is new.
        let session = sessions[(7 * slices) % sessions.len()];
        log.write(0, session, SESSION_WINDOW + 1, 2, put("b", "2"));
        log.0.apply(
            (log.1, 1),
            Some(Command::Close { session: sessions[199 - slices] }),
            Planted::default(),
        );
        slices += 1;
    };
    // 200 sessions of 1,024 results.
    assert!(slices > 3, "{slices} slices");
    assert_eq!(image, expected);
    assert_ne!(log.0.image(), expected);
    assert_eq!(Store::from_image(&image.bytes).unwrap().image(), image);
}

#[test]
fn an_image_is_decoded_as_its_parts_come() {
    let mut log = Log::new();
    let sessions: Vec<u64> = (0..20).map(|_| log.open(0)).collect();
    for n in 0..2_000_u64 {
        let op = put(&format!("k{n:06}"), &"v".repeat(n as usize % 100));
        log.write(0, sessions[n as usize % 20], 1 + n / 20, 1, op);
    }
    let image = log.0.image();
    for part in [1, 100, 4_096] {
        let mut decoder = Decoder::default();
        for end in (0..image.bytes.len()).step_by(part) {
            decoder.advance(&image.bytes[..end]).unwrap();
            // A session with its 100 results is the largest part of an image.
            assert!(end - decoder.at() < 1_500, "{} of {end} bytes", decoder.at());
        }
        assert!(decoder.clone().end(&image.bytes).is_err());
        decoder.advance(&image.bytes).unwrap();
        assert_eq!(decoder.end(&image.bytes).unwrap().image(), image);
    }
    let mut wrong = image.bytes.to_vec();
    wrong[0] ^= 1;
    assert_eq!(Decoder::default().advance(&wrong[..200]), Err(ImageError("its version".into())));
}

/// The undecoded bytes of a part of an image that never ends, sent in pieces, and the refusal.
fn endless(head: &[u8], piece: &[u8]) -> (usize, Decoder, String) {
    let (mut decoder, mut bytes) = (Decoder::default(), head.to_vec());
    loop {
        bytes.extend_from_slice(piece);
        if let Err(refusal) = decoder.advance(&bytes) {
            return (bytes.len() - decoder.at(), decoder, refusal.to_string());
        }
        assert!(bytes.len() < 8 << 20, "it is not refused");
    }
}

#[test]
fn a_part_of_an_image_that_never_ends_is_refused_at_the_largest_legal_size() {
    let mut log = Log::new();
    let session = log.open(0);
    let with_session = log.0.image().bytes.to_vec();
    log.write(0, session, 1, 1, put("a", "1"));
    log.apply(Command::Close { session });
    let mut without_keys = log.0.clone();
    without_keys.entries.clear();
    let (one, none) = (log.0.image().bytes, without_keys.image().bytes);
    // The heads end before the number of sessions and that of keys; those that follow are 2^63.
    let many = [&[0x80; 9][..], &[1]].concat();
    let before_keys = &none[..none.len() - 1];
    let before_entry = &one[..one.len() - 4];
    // The number, the times and the first write of a session, and then results of a number without end.
    let session = [&with_session[..with_session.len() - 1], &many].concat();
    for (part, limit, head, byte) in [
        ("a head", 18_414, [&[3][..], &[1; 5], &[0; 2], &many].concat(), 1),
        ("a session", 21_554, session, 1),
        ("an entry", (64 << 10) + (2 << 20) + 20, [before_keys, &many, &many].concat(), 1),
        ("an entry", (64 << 10) + (2 << 20) + 20, [before_entry, &[1, b'a'], &many].concat(), 1),
    ] {
        for len in [1_usize, 1_000, 256 << 10] {
            let (kept, decoder, refusal) = endless(&head, &vec![byte; len]);
            assert!(refusal.contains(&format!("({part} of more than {limit} bytes)")), "{refusal}");
            assert!((limit..=limit + 1 + len.max(head.len())).contains(&kept), "{part}: {kept}");
            // However small the pieces are, all attempts together read twice the bytes.
            assert!(decoder.repeated <= 2 * kept, "{part}: {} of {kept}", decoder.repeated);
        }
    }
}

#[test]
fn bytes_behind_the_end_of_an_image_are_refused_at_once() {
    let mut bytes = Log::new().0.image().bytes.to_vec();
    let mut decoder = Decoder::default();
    decoder.advance(&bytes).unwrap();
    bytes.push(0);
    let refusal = ImageError("bytes behind its end".into());
    assert_eq!(decoder.advance(&bytes), Err(refusal));
}

#[test]
fn the_largest_parts_of_an_image_are_taken() {
    let mut log = Log::new();
    let members = 1..=crate::wire::MAX_MEMBERS as u64;
    log.0.membership.voters = members.clone().map(|id| u64::MAX - id).rev().collect();
    let uri = "u".repeat(crate::command::MAX_URI);
    log.0.addresses = members.map(|id| (u64::MAX - id, uri.clone())).collect();
    (log.0.now_ms, log.1) = (u64::MAX / 2, u64::MAX / 2);
    let session = log.open(u64::MAX / 2);
    let last = u64::MAX - SESSION_WINDOW;
    for seq in 0..SESSION_WINDOW {
        log.write(0, session, last + seq, last, put("a", "1"));
    }
    let key = "k".repeat(crate::command::MAX_KEY);
    let session = log.open(0);
    log.write(0, session, 1, 1, put(&key, &"v".repeat(2 << 20)));
    let image = log.0.image();
    let mut decoder = Decoder::default();
    for end in (0..image.bytes.len()).step_by(100) {
        decoder.advance(&image.bytes[..end]).unwrap();
    }
    decoder.advance(&image.bytes).unwrap();
    assert_eq!(decoder.end(&image.bytes).unwrap().image(), image);
}
