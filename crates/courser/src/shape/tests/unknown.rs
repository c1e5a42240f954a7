//! Types that refuse values, and parts that are not known.

use super::*;

types! {
    struct Pair<T>(Refuses, T);
    enum Chosen<T> { Unit, Pair(Refuses, T), Fields { at: Refuses, until: Refuses, seats: T } }
    struct Row<T> { at: Refuses, before: Option<Pair<T>> }
}

fn differ<A: DeserializeOwned, B: DeserializeOwned>() -> bool {
    let (a, b) = (Shape::of::<A>(), Shape::of::<B>());
    assert_eq!([a.same(&a), a.reads(&a)], [Ok(()), Ok(())]);
    a.same(&b).is_err() && a.reads(&b).is_err() && a.fingerprint() != b.fingerprint()
}

#[test]
fn parts_behind_one_that_refuses_all_values_are_not_those_of_another_type() {
    assert_eq!(text::<(Refuses, u32)>(), "(String, ? of (Refuses, u32))");
    assert!(differ::<(Refuses, u32), (Refuses, i32)>());
    assert!(differ::<(u8, Refuses, u32), (u8, Refuses, i32)>());
    assert!(differ::<Vec<(Refuses, u32)>, Vec<(Refuses, i32)>>());
    assert!(differ::<BTreeMap<String, (Refuses, u32)>, BTreeMap<String, (Refuses, i32)>>());
    assert!(differ::<HashMap<Key, u32>, HashMap<Key, i32>>());
    assert!(differ::<Pair<u32>, Pair<i32>>());
    assert!(differ::<Chosen<u32>, Chosen<i32>>());
    assert!(differ::<Row<u32>, Row<i32>>());
    let long = ["x".repeat(300) + "u32", "x".repeat(300) + "i32"];
    assert!(Shape::opaque(&long[0]).same(&Shape::opaque(&long[1])).is_err());
}

/// A key that no made-up value fits.
#[derive(PartialEq, Eq, Hash)]
struct Key;

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Refuses::deserialize(from).map(|_| Key)
    }
}

/// A text that is accepted if it has this form: digits are `0`, and `h` is a hexadecimal digit.
struct Text<const FORM: usize>;

const FORMS: [&str; 7] = [
    "00:00:00",
    "0000-00-00T00:00:00",
    "0.0.0",
    "h@h.h",
    "127.0.0.1",
    "0000-00-00",
    "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh",
];

impl<'de, const FORM: usize> Deserialize<'de> for Text<FORM> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (text, form) = (String::deserialize(from)?, FORMS[FORM]);
        let fits = text.len() == form.len()
            && text.chars().zip(form.chars()).all(|(c, form)| match form {
                '0' => c.is_ascii_digit(),
                'h' => c.is_ascii_hexdigit(),
                form => c == form,
            });
        if fits { Ok(Text) } else { Err(de::Error::custom("another form")) }
    }
}

/// Two numbers, the first of which is less.
#[derive(Deserialize)]
#[serde(try_from = "(u32, u32)")]
struct Interval;

impl TryFrom<(u32, u32)> for Interval {
    type Error = &'static str;
    fn try_from((from, to): (u32, u32)) -> Result<Self, &'static str> {
        if from < to { Ok(Interval) } else { Err("an empty interval") }
    }
}

#[test]
fn texts_of_common_forms_are_read_so_that_the_parts_behind_them_are_known() {
    type All = (Text<0>, Text<1>, Text<2>, Text<3>, Text<4>, Text<5>, Text<6>, u32);
    assert_eq!(text::<All>(), "(..[String; 7], u32)");
    assert_eq!(text::<(Interval, u8)>(), "((u32, u32), u8)");
}

#[test]
fn a_type_beyond_the_limits_is_known_by_its_whole_name() {
    assert_eq!(text::<Wide<u8>>(), "Wide<u8>");
    assert!(differ::<Wide<u8>, Wide<u16>>());
}

/// More parts than are traced.
struct Wide<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Wide<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        type Eight<T> = (T, T, T, T, T, T, T, T);
        type Many<T> = Eight<Eight<Eight<Eight<T>>>>;
        <(Many<u8>, Many<u8>, Many<T>)>::deserialize(from)?;
        Ok(Wide(std::marker::PhantomData))
    }
}

mod later {
    use super::*;

    types! {
        pub(super) enum Event { Other, Booked { at: Refuses, until: Refuses, seats: i32 } }
        pub(super) struct Stay { at: Refuses, inner: Event, until: Refuses, after: i32 }
    }
}

types! {
    enum Event { Other, Booked { at: Refuses, until: Refuses, seats: u32 } }
    struct Stay { at: Refuses, inner: Event, until: Refuses, after: u32 }
    struct Beside { at: Refuses, many: Many40, until: Refuses, after: u8 }
    enum Within { First, Beside { at: Refuses, many: Many40, until: Refuses, after: u8 }, Last }
    enum Recursive { Two(Box<Recursive>, Box<Recursive>), Three(Box<Recursive>, u8, u16), End }
    enum Two { A, B(u8, u16) }
    struct Nested { inner: Option<Box<Nested>>, other: Option<Box<Nested>>, list: Vec<Nested> }
}

#[test]
fn fields_of_a_variant_beside_those_that_refuse_all_values_are_found() {
    assert_eq!(
        text::<Event>(),
        "enum Event { Other, Booked { at: String, until: String, seats: u32 } }"
    );
    let difference = Shape::of::<later::Event>().same(&Shape::of::<Event>()).unwrap_err();
    assert_eq!(difference.path(), "Event::Booked.seats");
    assert!(Shape::of::<later::Stay>().reads(&Shape::of::<Stay>()).is_err());
}

#[test]
fn all_variants_of_an_enum_beside_fields_that_refuse_all_values_are_found() {
    for shape in [Shape::of::<Beside>(), Shape::of::<Within>()] {
        let of = shape.types.iter().position(|named| &*named.name == "Many40").unwrap();
        let many = Shape { root: Form::Named(of), types: shape.types.clone() }.ordered();
        assert_eq!(many.same(&Shape::of::<Many40>()), Ok(()));
        let Body::Enum(found) = &many.types[0].body else { panic!() };
        assert_eq!(found.len(), 40);
        for variant in found {
            let Content::Tuple(runs) = &variant.content else { panic!("{variant:?}") };
            assert_eq!(runs[..], [(1, Form::Scalar(Scalar::U8)), (1, Form::Scalar(Scalar::U16))]);
        }
    }
    assert!(!format!("{:?}", Shape::of::<Within>()).contains("? of"));
}

types! {
    enum Many40 {
        V0(u8, u16), V1(u8, u16), V2(u8, u16), V3(u8, u16), V4(u8, u16), V5(u8, u16), V6(u8, u16), V7(u8, u16),
        V8(u8, u16), V9(u8, u16), V10(u8, u16), V11(u8, u16), V12(u8, u16), V13(u8, u16), V14(u8, u16), V15(u8, u16),
        V16(u8, u16), V17(u8, u16), V18(u8, u16), V19(u8, u16), V20(u8, u16), V21(u8, u16), V22(u8, u16), V23(u8, u16),
        V24(u8, u16), V25(u8, u16), V26(u8, u16), V27(u8, u16), V28(u8, u16), V29(u8, u16), V30(u8, u16), V31(u8, u16),
        V32(u8, u16), V33(u8, u16), V34(u8, u16), V35(u8, u16), V36(u8, u16), V37(u8, u16), V38(u8, u16), V39(u8, u16),
    }
}

#[test]
fn variants_that_contain_their_type_are_read_with_one_that_ends() {
    assert_eq!(
        text::<Recursive>(),
        "enum Recursive { Two(Recursive, Recursive), Three(Recursive, u8, u16), End }"
    );
}

/// A value other than the first one that is tried.
struct Other<T>(T);

impl<'de, T: Refused + Deserialize<'de>> Deserialize<'de> for Other<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = T::deserialize(from)?;
        if value.is_refused() { Err(de::Error::custom("refused")) } else { Ok(Other(value)) }
    }
}

trait Refused {
    fn is_refused(&self) -> bool;
}

impl Refused for Option<u8> {
    fn is_refused(&self) -> bool {
        self.is_none()
    }
}

impl Refused for Two {
    fn is_refused(&self) -> bool {
        matches!(self, Two::A)
    }
}

impl Refused for Nested {
    fn is_refused(&self) -> bool {
        self.inner.is_none()
    }
}

#[test]
fn options_and_enums_have_other_values_where_a_type_around_them_refuses_one() {
    let shape = text::<(Other<Option<u8>>, [Other<Two>; 3], Other<Nested>, u8)>();
    assert_eq!(
        shape,
        "(Option<u8>, (enum Two { A, B(u8, u16) }, Two, Two), Nested { inner: Option<Nested>, other: \
         Option<Nested>, list: Vec<Nested> }, u8)"
    );
}

types! {
    struct Lists { list: Vec<Beside>, option: Option<Stay>, map: BTreeMap<u8, Row<u8>>, event: Vec<Event> }
}

#[test]
fn fields_within_lists_and_options_are_found_beside_those_that_refuse_all_values() {
    let shape = Shape::of::<Lists>();
    let parts = [
        Shape::of::<Vec<Beside>>(),
        Shape::of::<Option<Stay>>(),
        Shape::of::<BTreeMap<u8, Row<u8>>>(),
    ];
    for (shape, of) in parts.iter().zip(["Beside", "Stay", "Row"]) {
        assert!(!format!("{shape:?}").contains(&format!("? of {of}")), "{of}: {shape:?}");
    }
    assert!(!format!("{shape:?}").contains("? of Event"), "{shape:?}");
    assert_eq!(text::<Vec<(NonZeroU32, u8)>>(), "Vec<(u32, u8)>");
    assert_eq!(text::<Option<(Other<Two>, u8)>>(), "Option<(enum Two { A, B(u8, u16) }, u8)>");
}
