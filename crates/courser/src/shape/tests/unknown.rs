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
