//! Attributes of serde with the codec postcard: each row of the table at `Postcard`.

use std::fmt::Debug;

use courser::service::{DecodeError, EncodeError, Postcard, RoundTripError, round_trip};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn survives<T: Clone + PartialEq + Debug + Serialize + for<'a> Deserialize<'a> + 'static>(
    value: T,
) {
    assert_eq!(round_trip::<Postcard, T>(&value), Ok(value));
}

fn unencoded<T: Debug + Serialize + for<'a> Deserialize<'a> + 'static>(value: &T, reason: &str) {
    match round_trip::<Postcard, T>(value) {
        Err(RoundTripError::Encode(EncodeError::Codec { detail, .. })) => {
            assert!(detail.contains(reason), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

fn undecoded<T: Debug + Serialize + for<'a> Deserialize<'a> + 'static>(value: &T) {
    match round_trip::<Postcard, T>(value) {
        Err(RoundTripError::Decode(DecodeError::Codec { detail, .. })) => {
            assert!(detail.contains("by names"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

fn plus_one<S: Serializer>(n: &u8, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(n + 1)
}

fn minus_one<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    Ok(u8::deserialize(from)?.wrapping_sub(1))
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Works {
    #[serde(rename = "other", alias = "third")]
    first_field: u8,
    #[serde(default)]
    second: Option<String>,
    #[serde(skip)]
    skipped: u32,
    #[serde(serialize_with = "plus_one", deserialize_with = "minus_one")]
    both: u8,
    last: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Transparent {
    inner: Vec<u16>,
}

#[test]
fn attributes_that_need_no_names_survive() {
    let both = 7;
    survives(Works { first_field: 1, second: Some("x".into()), skipped: 0, both, last: 1 << 60 });
    survives(Works { first_field: 1, second: None, skipped: 0, both, last: 0 });
    let skipped = Works { first_field: 1, second: None, skipped: 9, both, last: 0 };
    assert_eq!(round_trip::<Postcard, _>(&skipped).unwrap().skipped, 0, "its default");
    survives(Transparent { inner: vec![1, 1000] });
}

#[derive(Debug, Serialize, Deserialize)]
struct LeavesOut {
    before: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maybe: Option<u8>,
    after: u8,
}

#[derive(Debug, Serialize, Deserialize)]
enum VariantLeavesOut {
    Named {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maybe: Option<u8>,
        after: u8,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Flattened {
    before: u8,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rest {
    after: u8,
}

/// Writes a list whose length it does not know.
#[derive(Debug, Deserialize)]
struct Filtered(Vec<u8>);

impl Serialize for Filtered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().filter(|n| **n > 1))
    }
}

/// States another number of elements than it writes.
#[derive(Debug, Deserialize)]
struct Miscounted(Vec<u16>);

impl Serialize for Miscounted {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut list = to.serialize_seq(Some(2))?;
        self.0.iter().try_for_each(|n| list.serialize_element(n))?;
        list.end()
    }
}

#[test]
fn values_that_could_not_be_read_back_are_not_encoded() {
    unencoded(&LeavesOut { before: 1, maybe: None, after: 2 }, "`maybe` would be left out");
    assert!(round_trip::<Postcard, _>(&LeavesOut { before: 1, maybe: Some(1), after: 2 }).is_ok());
    unencoded(&VariantLeavesOut::Named { maybe: None, after: 2 }, "`maybe` would be left out");
    unencoded(&Flattened { before: 1, rest: Rest { after: 2 } }, "without its length");
    unencoded(&Filtered(vec![1, 2]), "without its length");
    for elements in [vec![], vec![1], vec![1, 2, 3]] {
        unencoded(&Miscounted(elements), "wrong number of elements");
    }
    assert!(round_trip::<Postcard, _>(&Miscounted(vec![1, 2])).is_ok());
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u8),
    Text(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Internal {
    One { a: u8 },
    Two,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", content = "c")]
enum Adjacent {
    Unit,
    Named { a: String, b: u8 },
}

#[derive(Debug, Serialize, Deserialize)]
struct Holds {
    before: u8,
    value: Vec<Untagged>,
}

#[test]
fn types_that_are_read_by_names_are_errors_of_decoding() {
    undecoded(&Untagged::Number(1));
    undecoded(&Untagged::Text("1".into()));
    undecoded(&Internal::One { a: 1 });
    undecoded(&Internal::Two);
    undecoded(&Adjacent::Unit);
    undecoded(&Adjacent::Named { a: "a".into(), b: 9 });
    undecoded(&Holds { before: 1, value: vec![Untagged::Number(3)] });
    undecoded(&serde_json::json!(7));
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct OneWay {
    #[serde(skip_serializing)]
    unsent: u8,
    sent: u8,
    after: u8,
}

#[derive(Debug, Serialize, Deserialize)]
struct Uneven {
    #[serde(serialize_with = "plus_one")]
    n: u8,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Skips {
    First,
    #[serde(skip)]
    Skipped,
    Second(u8),
    Third(u8),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum SkipsLast {
    First,
    Second(u8),
    #[serde(skip)]
    Skipped,
}

#[test]
fn a_variant_that_is_skipped_is_the_last_one() {
    survives(SkipsLast::First);
    survives(SkipsLast::Second(1));
    let reason = "cannot be serialized";
    unencoded(&SkipsLast::Skipped, reason);
    survives(Skips::First);
    unencoded(&Skips::Skipped, reason);
    // It is read as the third one.
    assert_eq!(round_trip::<Postcard, _>(&Skips::Second(1)), Err(RoundTripError::Differs));
    let third = round_trip::<Postcard, _>(&Skips::Third(1));
    assert!(matches!(third, Err(RoundTripError::Decode(_))), "{third:?}");
}

#[test]
fn a_round_trip_finds_types_whose_directions_differ() {
    let value = OneWay { unsent: 1, sent: 2, after: 3 };
    assert!(round_trip::<Postcard, _>(&value).is_err());
    let uneven = round_trip::<Postcard, _>(&Uneven { n: 1 });
    assert_eq!(uneven.unwrap_err(), RoundTripError::Differs);
}

#[test]
fn byte_strings_have_the_encoding_of_lists_of_bytes() {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Pair(String, Vec<u8>, [u8; 3]);

    for len in [0, 1, 127, 128, 255, 256, 257, 1000, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        survives(bytes.clone());
        survives(Pair("key".into(), bytes.clone(), [1, 2, 3]));
        let arena = courser_buf::Arena::heap();
        let ours = courser::service::encode::<Postcard, _>(&bytes, &arena).unwrap();
        // As postcard itself writes them: a length of seven bits each, and the bytes.
        let mut plain = Vec::new();
        let mut left = bytes.len();
        while left >= 0x80 {
            plain.push(left as u8 | 0x80);
            left >>= 7;
        }
        plain.push(left as u8);
        plain.extend(&bytes);
        assert_eq!(ours[..], plain[..]);
        let list: std::collections::LinkedList<u8> = bytes.iter().copied().collect();
        assert_eq!(courser::service::encode::<Postcard, _>(&list, &arena).unwrap()[..], plain[..]);
    }
}
