//! Required fields: how they are found, compared, and sent.

use super::*;
use crate::shape::method::{MethodKind, MethodShape};

types! {
    struct Fields {
        number: u8,
        option: Option<u8>,
        #[serde(default)] defaulted: u8,
        list: Vec<u8>,
        unit: (),
        newtype: Maybe,
        #[serde(deserialize_with = "some")] with: Option<u8>,
        #[serde(default, deserialize_with = "some")] both: Option<u8>,
        #[serde(skip)] skipped: u8,
        #[serde(rename = "type", alias = "kind")] renamed: u8,
        any: serde_json::Value,
    }
    struct Maybe(Option<u8>);
    #[serde(default)]
    #[derive(Default)]
    struct Defaults { a: u8, b: String }
    enum Variants { A, B { x: u8, y: Option<u8> }, C(Deep), D { variants: Vec<Variants>, z: u8 } }
    struct Deep { list: Vec<Option<Deeper>>, map: BTreeMap<u8, (u8, Deeper)>, before: u8 }
    struct Deeper { inner: u8, maybe: Option<u8>, again: Option<Box<Deep>> }
    struct Beside { before: u8, refuses: Refuses, after: u8, optional: Option<Refuses>, last: Deeper }
    struct Panicking { a: u8, #[serde(default = "panics")] b: u8, c: u8 }
    struct Next { next: Box<Next>, last: u8 }
}

fn some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    u8::deserialize(from).map(Some)
}

fn panics() -> u8 {
    panic!("a default that panics")
}

/// The required fields of all types of a shape.
fn required<T: DeserializeOwned>() -> String {
    let shape = Shape::of::<T>();
    let bits = shape.required();
    let all = shape.types.iter().flat_map(|named| match &named.body {
        Body::Struct(fields) => vec![&fields[..]],
        Body::Tuple(_) => vec![],
        Body::Enum(variants) => variants
            .iter()
            .filter_map(|variant| match &variant.content {
                Content::Struct(fields) => Some(&fields[..]),
                _ => None,
            })
            .collect(),
    });
    let all: Vec<_> = all.flatten().collect();
    assert_eq!(bits.len(), all.len().div_ceil(8));
    let named = all.iter().filter(|field| field.is_required);
    named.map(|field| &*field.names[0]).collect::<Vec<_>>().join(" ")
}

#[test]
fn fields_are_required_unless_they_have_a_default_or_are_options() {
    assert_eq!(required::<Fields>(), "number list unit newtype with type any");
    assert_eq!(required::<Defaults>(), "");
    assert_eq!(required::<Deep>(), "list map before inner");
    assert_eq!(required::<Variants>(), "x variants z list map before inner");
    assert_eq!(required::<(u8, Vec<Deeper>)>(), "inner list map before");
    assert_eq!(required::<Duration>(), "secs nanos");
}

#[test]
fn fields_that_are_not_known_to_be_required_are_not() {
    // The first of the fields that refuse all values hides those behind it.
    assert_eq!(required::<Beside>(), "before refuses inner list map before");
    assert_eq!(required::<Next>(), "next");
    // A panic ends the search, and has no effect on the form.
    assert_eq!(text::<Panicking>(), "Panicking { a: u8, b: u8, c: u8 }");
    assert_eq!(required::<Panicking>(), "a");
    struct Own;
    impl<'de> Deserialize<'de> for Own {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            Defaults::deserialize(from).and_then(|all| match all.b.is_empty() {
                true => Err(de::Error::custom("no b")),
                false => Ok(Own),
            })
        }
    }
    assert_eq!(required::<Own>(), "");
    assert_eq!(text::<Own>(), text::<Defaults>());
}

#[test]
fn a_wide_type_and_its_required_fields_are_found() {
    types! { #[derive(Default)] struct Four<T> { a: T, b: T, c: T, #[serde(default)] d: T } }
    type Wide = Four<Four<Four<Four<u8>>>>;
    assert_eq!(required::<Wide>(), ["a b c"; 4].join(" "));
    assert_eq!(required::<Large>(), "");
}

mod later {
    use serde::Deserialize;

    types! {
        pub(super) struct Row { a: u32, b: Option<String>, c: u8 }
        pub(super) struct Old { a: u32 }
        pub(super) enum Kind { A, B(u32), D { x: i8, z: u8 } }
    }
}

#[test]
fn a_reader_needs_its_required_fields_and_a_writer_does_not() {
    let [old, new] = [Shape::of::<Row>(), Shape::of::<later::Row>()];
    assert_eq!(old.reads(&new), Ok(()));
    let difference = new.reads(&old).unwrap_err();
    assert_eq!(difference.path(), "Row.c");
    let text = difference.between("server", "client");
    assert!(text.starts_with("Row.c: the server has a required field"), "{text}");
    assert!(text.contains("`#[serde(default)]`") && text.contains("`Option`"), "{text}");
    assert_eq!(Shape::of::<Row>().reads(&Shape::of::<later::Old>()), Ok(()));
    let [list, other] = [Shape::of::<Vec<(u8, later::Row)>>(), Shape::of::<Vec<(u8, Row)>>()];
    assert_eq!(list.reads(&other).unwrap_err().path(), "[].1.c");
    let difference = Shape::of::<later::Kind>().reads(&Shape::of::<Kind>()).unwrap_err();
    assert_eq!(difference.path(), "Kind::D.z");
    let nothing = Shape::of::<Defaults>().reads(&Shape::of::<later::Row>());
    assert!(nothing.is_err(), "no field is common");
}

#[test]
fn types_that_differ_in_defaults_only_are_one_type_that_requires_less() {
    mod other {
        use serde::Deserialize;

        types! { pub(super) struct Row { a: u32, #[serde(default)] b: Option<String> } }
        types! { pub(super) struct Deeper { #[serde(default)] inner: u8 } }
    }
    types! { struct Deeper { inner: u8 } }
    let both = Shape::of::<(Deeper, other::Deeper)>();
    assert_eq!(both.types.len(), 1);
    assert_eq!(both.required(), [0]);
    assert_eq!(Shape::tuple([Shape::of::<other::Deeper>(), Shape::of::<Deeper>()]).required(), [0]);
    let [one, other] = [Shape::of::<Deeper>(), Shape::of::<other::Deeper>()];
    assert_eq!((one.required(), other.required()), (vec![1], vec![0]));
    assert_eq!((one.fingerprint(), one.to_bytes()), (other.fingerprint(), other.to_bytes()));
    assert_eq!(one, other);
    assert_eq!(Shape::of::<Row>(), Shape::of::<other::Row>());
}

fn method() -> MethodShape {
    let arguments = Shape::tuple([Shape::of::<Fields>(), Shape::of::<Deep>()]);
    let parts =
        [arguments, Shape::of::<Row>(), Shape::of::<Variants>(), Shape::of::<later::Kind>()];
    MethodShape::with_parameters(MethodKind::BothStreams, &["first", "second"], parts)
}

fn required_of(method: &MethodShape) -> Vec<Vec<u8>> {
    let parts = [method.arguments(), method.sent(), method.value(), method.error()];
    parts.map(Shape::required).into()
}

#[test]
fn required_fields_follow_the_shapes_of_a_method() {
    let method = method();
    let (without, with) = (method.to_bytes(), method.to_bytes_with_required());
    assert!(with.starts_with(&without) && with.len() == without.len() + 6);
    let read = MethodShape::from_bytes(&with).unwrap();
    assert_eq!((required_of(&read), &read), (required_of(&method), &method));
    let read = MethodShape::from_bytes(&without).unwrap();
    assert!(required_of(&read).iter().flatten().all(|bits| *bits == 0));
    assert_eq!(read, method);
    // Cut, with a byte more, and with a bit that no field has.
    for end in without.len() + 1..with.len() {
        assert!(MethodShape::from_bytes(&with[..end]).is_err());
    }
    assert!(MethodShape::from_bytes(&[&with[..], &[0]].concat()).is_err());
    let mut more = with;
    *more.last_mut().unwrap() |= 0x80;
    assert!(MethodShape::from_bytes(&more).is_err());
}

#[test]
fn mutated_methods_are_refused_or_are_compared_with_a_short_text() {
    let own = method();
    let originals = [own.to_bytes(), own.to_bytes_with_required()];
    let (mut x, mut read) = (11_u64, 0);
    let mut below = |limit: usize| {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((x >> 33) as usize) % limit.max(1)
    };
    for i in 0..20_000 {
        let mut bytes = originals[i % 2].clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(5) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = [0, 1, 0x40, 0x44, 0x45, 0x80, 0xff][below(7)],
                2 => bytes.insert(at, below(256) as u8),
                3 if bytes.len() > 4 => drop(bytes.remove(at)),
                _ => bytes.truncate(at + 1),
            }
        }
        let Ok(method) = MethodShape::from_bytes(&bytes) else { continue };
        read += 1;
        assert!([method.to_bytes(), method.to_bytes_with_required()].contains(&bytes));
        assert!(method.to_string().chars().count() < 2_000);
        for (one, other) in [(&method, &own), (&own, &method)] {
            for reads in [Shape::reads, Shape::same] {
                let difference = one.calls(other, reads).err().unwrap_or_default();
                assert!(difference.chars().count() < 1_000, "{difference}");
            }
        }
    }
    assert!(read > 1_000, "{read}");
}
