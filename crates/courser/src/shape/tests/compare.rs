//! The two rules, on pairs of types.

use super::*;

fn differs(compared: Result<(), Difference>) -> String {
    compared.unwrap_err().between("server", "client")
}

fn same<A: DeserializeOwned, B: DeserializeOwned>() -> Result<(), Difference> {
    Shape::of::<A>().same(&Shape::of::<B>())
}

fn reads<A: DeserializeOwned, B: DeserializeOwned>() -> Result<(), Difference> {
    Shape::of::<A>().reads(&Shape::of::<B>())
}

mod later {

    pub(super) mod swapped {
        use serde::Deserialize;

        types! { pub(crate) struct Two { b: u32, a: u32 } }
    }
    pub(super) mod added {
        use serde::Deserialize;

        types! {
            pub(crate) struct Two { a: u32, b: u32, #[serde(default)] c: u8 }
            pub(crate) enum Kind { Zero, A, C { x: u8, y: Option<u8> }, B(u32) }
        }
    }
    pub(super) mod retyped {
        use serde::Deserialize;

        types! {
            pub(crate) struct Two { a: u32, b: i32 }
            pub(crate) enum Kind { A, B(i32), C { x: u8 } }
        }
    }
    pub(super) mod wider {
        use serde::Deserialize;

        types! { pub(crate) struct Two { a: u64, b: Option<u32> } }
    }
    pub(super) mod renamed {
        use serde::Deserialize;

        types! {
            pub(crate) struct Pair { #[serde(alias = "a")] first: u32, b: u32 }
            pub(crate) struct Wrapped(Pair);
            pub(crate) struct One { #[serde(default)] c: u32, #[serde(alias = "a")] first: i32, b: u32 }
            pub(crate) struct None { c: u32 }
            pub(crate) struct Empty {}
        }
    }
}

types! {
    struct Two { a: u32, b: u32 }
    enum Kind { A, B(u32), C { x: u8 } }
    struct Holder<T> { list: Vec<BTreeMap<String, (u8, T)>> }
    struct List<T> { value: T, next: Option<Box<List<T>>> }
}

#[test]
fn a_codec_without_names_reads_the_same_structure_only() {
    use later::*;
    assert_eq!(same::<Two, Two>(), Ok(()));
    assert_eq!(
        differs(same::<swapped::Two, Two>()),
        "Two: the server has { b, a }, the client { a, b }"
    );
    assert_eq!(
        differs(same::<added::Two, Two>()),
        "Two: the server has { a, b, c }, the client { a, b }"
    );
    assert_eq!(differs(same::<retyped::Two, Two>()), "Two.b: the server has i32, the client u32");
    assert_eq!(
        differs(same::<added::Kind, Kind>()),
        "Kind: the server has { Zero, A, C, B }, the client { A, B, C }"
    );
    assert_eq!(
        differs(same::<retyped::Kind, Kind>()),
        "Kind::B: the server has i32, the client u32"
    );
    assert_eq!(differs(same::<u64, u32>()), "the server has u64, the client u32");
    assert_eq!(
        differs(same::<(u8, u8), (u8, u8, u8)>()),
        "the server has 2 elements, the client 3 elements"
    );
    assert_eq!(
        differs(same::<[u8; 5], (u8, u8, u8, u8, i8)>()),
        ".4: the server has u8, the client i8"
    );
}

#[test]
fn names_of_types_newtypes_and_aliases_do_not_count() {
    assert_eq!(same::<later::renamed::Wrapped, Two>(), Ok(()));
    assert_eq!(same::<Two, later::renamed::Pair>(), Ok(()));
    assert_eq!(same::<Pair, (f32, f64)>(), Ok(()));
    assert_eq!(same::<(f32, f64), Pair>(), Ok(()));
    assert_eq!(same::<NonZeroU32, u32>(), Ok(()));
}

#[test]
fn a_codec_with_names_reads_fields_in_any_order_and_number() {
    use later::*;
    for [a, b] in [
        [Shape::of::<Two>(), Shape::of::<swapped::Two>()],
        [Shape::of::<Two>(), Shape::of::<added::Two>()],
        [Shape::of::<Kind>(), Shape::of::<added::Kind>()],
    ] {
        let is_kind = a.to_string().contains("enum");
        for compared in [a.reads(&b), b.reads(&a)] {
            assert!(compared.is_ok(), "{compared:?} {is_kind}");
        }
    }
    assert_eq!(reads::<renamed::Wrapped, Two>(), Ok(()));
    assert_eq!(reads::<renamed::Empty, Two>(), Ok(()));
    // A field of the reader has no name that the writer sends.
    let required = "the server has a required field (it is not with `#[serde(default)]`, or as an \
                    `Option`), the client none";
    assert_eq!(differs(reads::<Two, renamed::Wrapped>()), format!("Two.a: {required}"));
    assert_eq!(differs(reads::<Two, renamed::One>()), format!("Two.a: {required}"));
    assert_eq!(differs(reads::<Two, renamed::Empty>()), format!("Two.a: {required}"));
    assert_eq!(
        differs(reads::<renamed::One, Two>()),
        "One.first: the server has i32, the client u32"
    );
    assert_eq!(
        differs(reads::<Two, renamed::None>()),
        "Two: the server has { a, b }, the client { c }"
    );
    assert_eq!(
        differs(reads::<Holder<retyped::Two>, Holder<Two>>()),
        "Holder.list[][].1.b: the server has i32, the client u32"
    );
    assert_eq!(
        differs(reads::<retyped::Kind, Kind>()),
        "Kind::B: the server has i32, the client u32"
    );
    assert_eq!(
        differs(reads::<Kind, Last>()),
        "Kind: the server has { A, B, C }, the client { First, Second, Third }"
    );
}

#[test]
fn an_integer_becomes_a_wider_one_and_a_value_an_option_but_not_back() {
    use later::wider;
    assert_eq!(reads::<wider::Two, Two>(), Ok(()));
    assert_eq!(differs(reads::<Two, wider::Two>()), "Two.a: the server has u32, the client u64");
    for ok in [
        reads::<u64, u8>(),
        reads::<i16, u8>(),
        reads::<i128, u64>(),
        reads::<i64, i8>(),
        reads::<f64, f32>(),
        reads::<Option<i64>, u8>(),
        reads::<Option<Option<u8>>, Option<u8>>(),
    ] {
        assert_eq!(ok, Ok(()));
    }
    for refused in [
        reads::<u8, u16>(),
        reads::<u64, i8>(),
        reads::<i16, u16>(),
        reads::<f32, f64>(),
        reads::<f64, u8>(),
        reads::<u8, bool>(),
        reads::<u32, char>(),
        reads::<Option<()>, ()>(),
        reads::<Option<u8>, Option<Option<u8>>>(),
        reads::<u8, Option<u8>>(),
        reads::<Vec<u8>, String>(),
        reads::<[u8; 3], Vec<u8>>(),
        reads::<BTreeMap<String, u32>, Two>(),
        reads::<Two, (u32, u32)>(),
        reads::<Kind, Two>(),
    ] {
        assert!(refused.is_err());
    }
}

#[test]
fn recursive_types_are_compared_once() {
    assert_eq!(same::<List<u8>, List<u8>>(), Ok(()));
    assert_eq!(
        differs(same::<List<List<u8>>, List<List<u16>>>()),
        "List.value.value: the server has u8, the client u16"
    );
    assert_eq!(reads::<List<u16>, List<u8>>(), Ok(()));
    assert_eq!(same::<Tree, Tree>(), Ok(()));
}

#[test]
fn opaque_types_are_the_same_as_others_of_their_name() {
    assert_eq!(Shape::opaque("a").same(&Shape::opaque("a")), Ok(()));
    assert_eq!(
        differs(Shape::opaque("a").reads(&Shape::opaque("b"))),
        "the server has a, the client b"
    );
    assert!(Shape::opaque("a").same(&Shape::of::<u8>()).is_err());
    assert!(Shape::never().same(&Shape::of::<()>()).is_err());
}
