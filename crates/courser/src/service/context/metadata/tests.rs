use super::*;

fn sample() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("traceparent", "00-x").unwrap();
    metadata.insert("token", vec![0, 255]).unwrap();
    metadata.insert("a.b_c-9", String::new()).unwrap();
    metadata.insert("baggage", "k=v ü").unwrap();
    metadata
}

#[test]
fn metadata_is_read_as_it_was_written() {
    let metadata = sample();
    let read = Metadata::parse(metadata.as_bytes()).unwrap();
    assert_eq!(read, metadata);
    assert_eq!(read.len(), 4);
    assert_eq!(read.text("baggage"), Some("k=v ü"));
    assert_eq!(read.bytes("token"), Some(&[0, 255][..]));
    assert_eq!((read.text("token"), read.bytes("baggage")), (None, None));
    assert_eq!(read.text("a.b_c-9"), Some(""));
    assert_eq!(
        read.passed().iter().map(|(key, _)| key).collect::<Vec<_>>(),
        ["traceparent", "baggage"]
    );
    assert_eq!(Metadata::parse(&[]).unwrap(), Metadata::new());
    // The bytes of docs/wire-protocol.md.
    let mut two = Metadata::new();
    two.insert("k", "v").unwrap();
    two.insert("b", vec![7]).unwrap();
    assert_eq!(two.as_bytes(), [1, b'k', 1, 0, b'v', 1, b'b', 1, 0x80, 7]);
}

#[test]
fn a_pair_replaces_an_earlier_one_and_is_removed() {
    let mut metadata = sample();
    metadata.insert("token", "text").unwrap();
    assert_eq!((metadata.len(), metadata.text("token")), (4, Some("text")));
    assert!(metadata.remove("token") && !metadata.remove("token"));
    assert_eq!(metadata.len(), 3);
    let mut own = Metadata::new();
    own.insert("baggage", "own").unwrap();
    own.fill_from(&metadata).unwrap();
    assert_eq!((own.len(), own.text("baggage")), (3, Some("own")));
}

#[test]
fn pairs_that_are_not_allowed_change_nothing() {
    let mut metadata = sample();
    let long = "k".repeat(65);
    for key in ["", "Key", "a b", "ä", "a:b", &long] {
        let error = metadata.insert(key, "").unwrap_err();
        assert!(matches!(error, MetadataError::Key { .. }), "{key}: {error}");
    }
    let error = metadata.insert("k", "a\nb").unwrap_err();
    assert_eq!(error, MetadataError::Control { key: "k".into() });
    let error = metadata.insert("k", vec![0; 4_096]).unwrap_err();
    let bytes = metadata.as_bytes().len() + 4 + 4_096;
    assert_eq!(error, MetadataError::TooLarge { bytes });
    assert_eq!(metadata, sample());
    metadata.insert(&"k".repeat(64), "").unwrap();
    for n in 5..32 {
        metadata.insert(&format!("k{n}"), "").unwrap();
    }
    assert_eq!(metadata.insert("one-more", "").unwrap_err(), MetadataError::Pairs);
    metadata.insert("k31", "replaced").unwrap();
    let mut full = Metadata::new();
    full.insert("k", vec![1; 4_096 - 4]).unwrap();
    assert!(Metadata::parse(full.as_bytes()).is_ok());
    full.insert("k", vec![1; 4_096 - 3]).unwrap_err();
}

#[test]
fn malformed_metadata_is_an_error() {
    let pair = |key: &[u8], value: &[u8], mark: u16| {
        let len = (value.len() as u16 | mark).to_le_bytes();
        [&[key.len() as u8][..], key, &len, value].concat()
    };
    let many: Vec<u8> = (0..33).flat_map(|n| pair(format!("k{n}").as_bytes(), b"", 0)).collect();
    let cases: [(&[u8], &str); 9] = [
        (&pair(b"", b"", 0), "another character"),
        (&pair(b"K", b"", 0), "another character"),
        (&pair(&[b'k'; 65], b"", 0), "another character"),
        (&pair(b"k", b"\x00", 0), "text that is none"),
        (&pair(b"k", b"\xff", 0), "text that is none"),
        (&[pair(b"k", b"", 0), pair(b"k", b"", IS_BYTES)].concat(), "a key twice"),
        (&many, "more than 32 pairs"),
        (&vec![b'k'; 4_097], "more than 4,096"),
        (&[200, b'k'], "ends early"),
    ];
    for (bytes, says) in cases {
        let error = Metadata::parse(bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let sample = sample();
    let ends: Vec<_> = (0..sample.as_bytes().len())
        .filter(|end| Metadata::parse(&sample.as_bytes()[..*end]).is_ok())
        .collect();
    assert_eq!(ends.len(), 4, "only between pairs: {ends:?}");
}

#[test]
fn any_bytes_are_metadata_or_an_error_and_are_kept_as_they_were() {
    let (sample, mut random) = (sample(), 1_u64);
    for _ in 0..100_000 {
        let mut bytes = sample.as_bytes().to_vec();
        for _ in 0..3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        if let Ok(read) = Metadata::parse(&bytes) {
            let mut again = Metadata::new();
            read.iter().for_each(|(key, value)| again.insert(key, value).unwrap());
            assert_eq!(again.as_bytes(), bytes);
        }
    }
}

#[test]
fn what_is_passed_on_begins_with_the_trace() {
    let mut metadata = Metadata::new();
    for key in ["baggage", "token", "tracestate", "traceparent"] {
        metadata.insert(key, "v").unwrap();
    }
    let passed = metadata.passed();
    let keys: Vec<_> = passed.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["traceparent", "tracestate", "baggage"]);
    // So that baggage does not take its room.
    let mut metadata = Metadata::new();
    metadata.insert("baggage", "b".repeat(4_000)).unwrap();
    metadata.insert("traceparent", "t".repeat(55)).unwrap();
    let mut of_call = Metadata::new();
    of_call.insert("k", "v".repeat(50)).unwrap();
    of_call.fill_from(&metadata.passed()).unwrap_err();
    assert!(of_call.text("traceparent").is_some() && of_call.text("baggage").is_none());
}

#[test]
fn debug_shows_no_values() {
    let mut metadata = Metadata::new();
    metadata.insert("token", "secret").unwrap();
    metadata.insert("key", vec![77, 78]).unwrap();
    assert_eq!(format!("{metadata:?}"), r#"{"token": 6, "key": 2}"#);
}
