use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroI8, NonZeroU32};
use std::time::{Duration, SystemTime};

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};

use super::model::*;
use super::*;

fn text<T: DeserializeOwned>() -> String {
    Shape::of::<T>().to_string()
}

macro_rules! types {
    ($($item:item)*) => {
        $(#[derive(Deserialize)] #[allow(dead_code)] $item)*
    };
}

mod compare;
mod network;
mod required;
mod stack;
mod unknown;

types! {
    struct Row { a: u32, b: Option<String> }
    enum Kind { A, B(u32), C(u8, Row), D { x: i8, y: Box<Kind> } }
    struct Unit;
    struct Newtype(Row);
    struct Pair(f32, f64);
    struct Tree { trees: Vec<Tree>, named: BTreeMap<u8, Tree> }
    struct Generic<T> { value: T }
    struct Generics { a: Generic<u8>, b: Generic<String>, c: Generic<u8> }
}

#[test]
fn a_shape_is_written_as_an_engineer_writes_it() {
    assert_eq!(text::<Row>(), "Row { a: u32, b: Option<String> }");
    assert_eq!(
        text::<Kind>(),
        "enum Kind { A, B(u32), C(u8, Row { a: u32, b: Option<String> }), D { x: i8, y: Kind } }"
    );
    assert_eq!(text::<Unit>(), "()");
    assert_eq!(text::<Newtype>(), text::<Row>());
    assert_eq!(text::<Pair>(), "Pair(f32, f64)");
    assert_eq!(text::<Tree>(), "Tree { trees: Vec<Tree>, named: Map<u8, Tree> }");
    assert_eq!(
        text::<(bool, char, i64, u128, [u16; 2], [u8; 32], ())>(),
        "(bool, char, i64, u128, (u16, u16), [u8; 32], ())"
    );
    assert_eq!(text::<(Vec<u8>, VecDeque<u8>, Vec<Vec<i8>>)>(), "(bytes, bytes, Vec<Vec<i8>>)");
    assert_eq!(text::<Result<u8, String>>(), "enum Result { Ok(u8), Err(String) }");
    assert_eq!(text::<(usize, isize, Box<str>)>(), "(u64, i64, String)");
}

#[test]
fn types_of_one_name_keep_their_own_fields() {
    mod other {
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        pub(super) struct Row {
            c: i8,
        }
    }
    assert_eq!(
        text::<(Row, other::Row, Row)>(),
        "(Row { a: u32, b: Option<String> }, Row { c: i8 }, Row)"
    );
    assert_eq!(
        text::<Generics>(),
        "Generics { a: Generic { value: u8 }, b: Generic { value: String }, c: Generic }"
    );
}

types! {
    enum Many { V0, V1(Box<Many>), V2(Two), V3 { t: Option<Two> }, V4(Vec<Three>), V5 }
    enum Two { X(Three), Y }
    enum Three { P(BTreeMap<u8, Last>), Q, R(Last) }
    enum Last { First, Second(NonZeroU32, NonZeroI8), Third(String) }
    enum NeverEnds { One(Box<NeverEnds>), Two(Box<NeverEnds>, Box<NeverEnds>) }
    enum EndsLate { A(Box<EndsLate>), B(Box<EndsLate>), C(Vec<EndsLate>, Kind), D(Box<EndsLate>) }
    struct Endless(Box<Endless>);
    struct EndlessField { next: Box<EndlessField> }
    struct EndlessPair(Box<EndlessPair>, u8);
    struct Left { right: Option<Box<Right>> }
    struct Right { lefts: Vec<Left>, n: u8 }
}

#[test]
fn all_variants_are_found_within_options_lists_and_maps() {
    assert_eq!(
        text::<Option<Many>>(),
        "Option<enum Many { V0, V1(Many), V2(enum Two { X(enum Three { P(Map<u8, enum Last { First, \
         Second(u32, i8), Third(String) }>), Q, R(Last) }), Y }), V3 { t: Option<Two> }, \
         V4(Vec<Three>), V5 }>"
    );
    let shape = Shape::of::<Large>();
    assert!(matches!(&shape.types[0].body, Body::Enum(variants) if variants.len() == 300));
    let unknown = Content::One(Form::Opaque("? of Large".into()));
    let Body::Enum(variants) = &shape.types[0].body else { panic!() };
    assert!(variants.iter().all(|v| v.content != unknown), "{shape}");
}

#[test]
fn types_that_contain_themselves_end() {
    assert_eq!(text::<Endless>(), "? of Endless");
    assert_eq!(text::<EndlessField>(), "EndlessField { next: EndlessField }");
    assert_eq!(text::<EndlessPair>(), "EndlessPair(EndlessPair, ? of EndlessPair)");
    assert_eq!(
        text::<NeverEnds>(),
        "enum NeverEnds { One(NeverEnds), Two(NeverEnds, ? of NeverEnds) }"
    );
    assert_eq!(
        text::<EndsLate>(),
        format!(
            "enum EndsLate {{ A(EndsLate), B(EndsLate), C(Vec<EndsLate>, {}), D(EndsLate) }}",
            text::<Kind>()
        )
    );
    assert_eq!(text::<Left>(), "Left { right: Option<Right { lefts: Vec<Left>, n: u8 }> }");
}

/// An enum of 300 variants, most of which contain it.
struct Large;

impl<'de> Deserialize<'de> for Large {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Large;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a variant")
            }
            fn visit_enum<A: de::EnumAccess<'de>>(self, from: A) -> Result<Large, A::Error> {
                let (number, content) = from.variant::<u32>()?;
                match number {
                    299 => de::VariantAccess::unit_variant(content)?,
                    _ => {
                        de::VariantAccess::newtype_variant::<Large>(content)?;
                    }
                }
                Ok(Large)
            }
        }
        static NAMES: [&str; 300] = ["v"; 300];
        from.deserialize_enum("Large", &NAMES, Visitor)
    }
}

types! {
    struct Checked { before: u8, zero: NonZeroU32, percent: Percent, after: Kind, at: Duration }
    #[serde(try_from = "u8")]
    struct Percent(u8);
    struct Refusing { before: u8, refuses: Refuses, after: Option<Kind>, inner: Inner, last: u16 }
    struct Inner { refuses: Refuses, x: u32, list: Vec<Refuses>, after: (Refuses, u8) }
    struct Panicking { panics: Panics, after: u16, list: Vec<Panics> }
    struct Alias { #[serde(alias = "old", alias = "aold")] new: u8, #[serde(alias = "z")] c: u16, d: u8 }
    struct Renamed { #[serde(rename = "type")] kind: u8, #[serde(skip)] skipped: u64 }
    struct Any { a: serde_json::Value, b: Untagged, c: u8 }
    #[serde(untagged)]
    enum Untagged { A(u8), B(String) }
    struct Flat { a: u8, #[serde(flatten)] row: Row }
    #[serde(tag = "t", content = "c")]
    enum Adjacent { A(u8), B(String) }
    struct Several { adjacent: Adjacent, flat: Flat, c: u8 }
    struct Text { #[serde(deserialize_with = "several")] text: String, n: u8 }
}

impl TryFrom<u8> for Percent {
    type Error = String;
    fn try_from(value: u8) -> Result<Self, String> {
        if value >= 10 { Ok(Percent(value)) } else { Err("too small".into()) }
    }
}

/// A text that no made-up value fits.
struct Refuses;

impl<'de> Deserialize<'de> for Refuses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?;
        Err(de::Error::custom("never"))
    }
}

struct Panics;

impl<'de> Deserialize<'de> for Panics {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let n = i32::deserialize(from)?;
        panic!("a type that panics on {n}")
    }
}

/// Reads another form, after a value that it refuses.
fn several<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    thread_local! {
        static IS_FIRST: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
    }
    if IS_FIRST.replace(false) {
        String::deserialize(from)?;
        return Err(de::Error::custom("a text"));
    }
    u8::deserialize(from).map(|n| n.to_string())
}

#[test]
fn types_that_refuse_values_are_traced_with_others() {
    let kind = text::<Kind>();
    assert_eq!(
        text::<Checked>(),
        format!(
            "Checked {{ before: u8, zero: u32, percent: u8, after: {kind}, \
             at: Duration {{ secs: u64, nanos: u32 }} }}"
        )
    );
    assert_eq!(
        text::<Refusing>(),
        format!(
            "Refusing {{ before: u8, refuses: String, after: Option<{kind}>, inner: Inner {{ \
             refuses: String, x: u32, list: Vec<String>, after: (String, ? of (Refuses, u8)) }}, last: u16 }}"
        )
    );
    assert_eq!(text::<Panicking>(), "Panicking { panics: i32, after: u16, list: Vec<i32> }");
    assert_eq!(
        text::<SystemTime>(),
        "SystemTime { secs_since_epoch: u64, nanos_since_epoch: u32 }"
    );
    assert_eq!(text::<IpAddr>(), "enum IpAddr { V4((u8, u8, u8, u8)), V6([u8; 16]) }");
    assert!(!text::<SocketAddr>().contains('?'));
}

#[test]
fn names_and_aliases_of_a_field_are_one_field() {
    let shape = Shape::of::<Alias>();
    assert_eq!(shape.to_string(), "Alias { new: u8, c: u16, d: u8 }");
    let Body::Struct(fields) = &shape.types[0].body else { panic!() };
    let names: Vec<Vec<&str>> =
        fields.iter().map(|field| field.names.iter().map(|name| &**name).collect()).collect();
    assert_eq!(names, [vec!["new", "aold", "old"], vec!["c", "z"], vec!["d"]]);
    assert_eq!(text::<Renamed>(), "Renamed { type: u8 }");
}

#[test]
fn parts_that_cannot_be_traced_are_opaque_alone() {
    assert_eq!(text::<Any>(), "Any { a: Value, b: Untagged, c: u8 }");
    assert_eq!(
        text::<Several>(),
        "Several { adjacent: Adjacent { t: enum Adjacent { A, B }, c: ? of Adjacent }, flat: Flat, \
         c: u8 }"
    );
    assert_eq!(text::<Vec<serde_json::Value>>(), "Vec<Value>");
    assert_eq!(text::<Text>(), "Text { text: ? of Text, n: u8 }");
}

#[test]
fn an_opaque_type_has_the_last_segment_of_its_name() {
    assert_eq!(Shape::named::<Vec<Row>>().to_string(), "Vec<Row>");
    let map = Shape::named::<HashMap<String, (Row, &'static [u8])>>().to_string();
    assert!(map.starts_with("HashMap<String, (Row, &[u8])"), "{map}");
    assert_eq!(Shape::opaque(&"x".repeat(1000)).to_string().len(), 200);
    assert_eq!(Shape::never().to_string(), "never");
}

#[test]
fn parameters_are_a_tuple_of_their_shapes() {
    let parts = [Shape::of::<Row>(), Shape::of::<Kind>(), Shape::of::<Row>()];
    let tuple = Shape::tuple(parts);
    assert_eq!(tuple.to_string(), Shape::of::<(Row, Kind, Row)>().to_string());
    assert_eq!(Shape::tuple([]).same(&Shape::of::<()>()), Ok(()));
    assert_eq!(
        Shape::of::<(Row, Kind)>().same(&Shape::tuple([Shape::of::<Row>(), Shape::of::<Kind>()])),
        Ok(())
    );
}

#[test]
fn long_arrays_and_wide_types_are_bounded() {
    struct Long;
    impl<'de> Deserialize<'de> for Long {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> de::Visitor<'de> for Visitor {
                type Value = Long;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("elements")
                }
                fn visit_seq<A: de::SeqAccess<'de>>(self, mut from: A) -> Result<Long, A::Error> {
                    while from.next_element::<u8>()?.is_some() {}
                    Ok(Long)
                }
            }
            from.deserialize_tuple(1 << 20, Visitor)
        }
    }
    assert_eq!(text::<Long>(), "[u8; 1048576]");
    types! {
        struct D0 { a: u8, b: u8 }
        struct Doubled<T> { a: Box<T>, b: Box<T> }
    }
    type D4<T> = Doubled<Doubled<Doubled<Doubled<T>>>>;
    // 2^16 values of one byte.
    assert!(text::<D4<D4<D4<D4<D0>>>>>().starts_with("Doubled { a: Doubled { a: "));
}

#[test]
fn sets_and_lists_of_all_kinds_are_lists() {
    let of = text::<Vec<u32>>();
    assert_eq!(of, "Vec<u32>");
    assert_eq!(text::<BTreeSet<u32>>(), of);
    assert_eq!(text::<Box<[u32]>>(), of);
}
