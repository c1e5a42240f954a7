//! The deserializer that records what a type reads, and returns made-up values.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

use super::record::{Body, Content, Failure, Field, Group, Kind, Record, Stop, VOID, Variant};
use crate::shape::model::Scalar;

type Result<T> = std::result::Result<T, Stop>;

/// Elements of a tuple that have a place of their own.
const MAX_ELEMENTS: usize = 256;
/// Values without a field that end for another reason.
const ATTEMPTS: u8 = 3;
/// Elements of a list that is refused without.
const MAX_LIST: u8 = 4;

const INTEGERS: [u8; 5] = [0, 1, 2, 10, 100];
const TEXTS: [&str; 14] = [
    "",
    "a",
    "0",
    "1",
    "127.0.0.1",
    "2000-01-01T00:00:00Z",
    "2000-01-01",
    "http://localhost/",
    "00000000-0000-0000-0000-000000000000",
    "00:00:00",
    "2000-01-01T00:00:00",
    "1.0.0",
    "a@b.c",
    "0000000000000000000000000000000000000000000000000000000000000001",
];
const LENGTHS: [usize; 8] = [0, 16, 32, 4, 8, 12, 20, 1];

/// A deserializer of the value at a place.
pub(super) struct Tracer<'r> {
    pub(super) record: &'r mut Record,
    pub(super) place: usize,
}

impl Tracer<'_> {
    /// One of the values that are tried here. After each of them was tried, the scalars of a value have
    /// different ones.
    fn sample<T: Copy>(&mut self, of: &[T]) -> T {
        self.record.scalars += 1;
        let sample = self.record.sample as usize;
        let place = if sample < of.len() { 0 } else { self.record.scalars as usize };
        of[(sample + place) % of.len()]
    }

    fn scalar(&mut self, scalar: Scalar) {
        self.record.is(self.place, Kind::Scalar(scalar));
    }

    /// Places of the elements of a tuple.
    fn elements(&mut self, len: usize) -> Vec<usize> {
        let Record { places, .. } = self.record;
        if let Kind::Tuple(known, of) = &places[self.place].kind
            && *of == len
        {
            return known.clone();
        }
        let new = match places[self.place].kind {
            Kind::Unknown => self.record.new_places(len),
            _ => Vec::new(),
        };
        if self.record.is(self.place, Kind::Tuple(new.clone(), len)) { new } else { Vec::new() }
    }
}

impl Record {
    /// Reads what is at a place.
    pub(super) fn at<'de, S: DeserializeSeed<'de>>(
        &mut self,
        place: usize,
        seed: S,
    ) -> Result<S::Value> {
        self.places[place].name = std::any::type_name::<S::Value>();
        self.open(place)?;
        let result = seed.deserialize(Tracer { record: self, place });
        self.close(place, result)
    }

    /// A place for each element, up to some number.
    fn new_places(&mut self, len: usize) -> Vec<usize> {
        // Long ones are arrays, whose elements have one type.
        let count = if len > MAX_ELEMENTS { 1 } else { len };
        (0..count).map(|_| self.place()).collect()
    }

    /// Reads the fields of a struct or a variant: by name, those behind all others which refuse values.
    fn fields<'de, V: Visitor<'de>>(&mut self, group: usize, visitor: V) -> Result<V::Value> {
        let all = &self.groups[group];
        if all.by_position {
            let places = all.fields.iter().map(|field| field.place).collect();
            let left = all.fields.len();
            return visitor.visit_seq(Elements::new(self, places, left));
        }
        let mut order: Vec<_> = all.names().collect();
        if let Some(field) = self.probe_of(group) {
            return self.probe(group, field, visitor);
        }
        // Only the first of the fields that refuse all values is read.
        order.sort_by_key(|i| {
            let place = &self.places[all.fields[*i].place];
            (place.is_refused, place.reads)
        });
        let before = all.asked;
        let result = visitor.visit_map(Fields::new(self, group, order));
        let Err(stop) = &result else { return result };
        let all = &mut self.groups[group];
        if all.asked == before && !all.fields.is_empty() {
            all.by_position = true;
            self.excuse();
        } else if let Some(name) = stop.duplicate
            && let Some(of) = all.fields.iter().position(|field| field.name == name)
            && let last = all.last
            && all.fields[last].alias_of.is_none()
        {
            // The name of the field was read behind its alias.
            let (alias, of) = if of == last { (all.before(last), last) } else { (last, of) };
            all.fields[alias].alias_of = Some(of);
            self.excuse();
        }
        result.map_err(|_| Stop::default())
    }

    /// Reads the fields of a group without one of them, and without those that refuse all values, so that
    /// the end of the fields is reached. It is required if the type's error names it as missing. That is
    /// not known of one behind another that is missing too, and of types with an error of their own.
    pub(super) fn probe<'de, V: Visitor<'de>>(
        &mut self,
        group: usize,
        field: usize,
        visitor: V,
    ) -> Result<V::Value> {
        let all = &self.groups[group];
        let is_refused = |i: &usize| self.places[all.fields[*i].place].is_refused;
        let (left, order): (Vec<_>, Vec<_>) =
            all.names().partition(|i| *i == field || is_refused(i));
        let before = self.changes;
        let result = visitor.visit_map(Fields::new(self, group, order));
        let of_parts = self.failure != Failure::None;
        let fields = &mut self.groups[group].fields;
        match result {
            Ok(value) => {
                left.iter().for_each(|i| fields[*i].is_probed = true);
                self.changes += 1;
                Ok(value)
            }
            Err(_) if of_parts => {
                // The parts may have changed the record: then it is no attempt of this field.
                if self.changes == before {
                    fields[field].attempts += 1;
                    fields[field].is_probed = fields[field].attempts >= ATTEMPTS;
                    self.changes += 1;
                }
                Err(Stop::default())
            }
            Err(stop) => {
                fields[field].is_probed = true;
                if let Some(i) = left.iter().find(|i| Some(fields[**i].name) == stop.missing) {
                    (fields[*i].is_probed, fields[*i].is_required) = (true, true);
                }
                self.excuse();
                Err(Stop::default())
            }
        }
    }
}

impl Group {
    /// The name before, which belongs to the same field, as names of a field follow each other.
    fn before(&self, last: usize) -> usize {
        (0..last).rev().find(|i| self.fields[*i].alias_of.is_none()).unwrap_or(last)
    }
}

macro_rules! scalars {
    ($($deserialize:ident $visit:ident $scalar:ident $type:ty,)*) => {
        $(fn $deserialize<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
            self.scalar(Scalar::$scalar);
            visitor.$visit(<$type>::from(self.sample(&INTEGERS)))
        })*
    };
}

macro_rules! texts {
    ($($deserialize:ident)*) => {
        $(fn $deserialize<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
            self.scalar(Scalar::Text);
            visitor.visit_borrowed_str(self.sample(&TEXTS))
        })*
    };
}

macro_rules! byte_strings {
    ($($deserialize:ident)*) => {
        $(fn $deserialize<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
            self.scalar(Scalar::Bytes);
            visitor.visit_borrowed_bytes(&[0; 32][..self.sample(&LENGTHS)])
        })*
    };
}

impl<'de> de::Deserializer<'de> for Tracer<'_> {
    type Error = Stop;

    scalars! {
        deserialize_i16 visit_i16 I16 i16,
        deserialize_i32 visit_i32 I32 i32,
        deserialize_i64 visit_i64 I64 i64,
        deserialize_i128 visit_i128 I128 i128,
        deserialize_u8 visit_u8 U8 u8,
        deserialize_u16 visit_u16 U16 u16,
        deserialize_u32 visit_u32 U32 u32,
        deserialize_u64 visit_u64 U64 u64,
        deserialize_u128 visit_u128 U128 u128,
        deserialize_f32 visit_f32 F32 f32,
        deserialize_f64 visit_f64 F64 f64,
    }
    texts! { deserialize_str deserialize_string }
    byte_strings! { deserialize_bytes deserialize_byte_buf }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_i8<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
        self.scalar(Scalar::I8);
        visitor.visit_i8(self.sample(&[0, 1, 2, 10, 100]))
    }

    fn deserialize_bool<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
        self.scalar(Scalar::Bool);
        visitor.visit_bool(self.sample(&[false, true]))
    }

    fn deserialize_char<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
        self.scalar(Scalar::Char);
        visitor.visit_char(self.sample(&['a', '0', 'A', ' ']))
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
        self.scalar(Scalar::Unit);
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        let Tracer { record, place } = self;
        record.enter(place)?;
        let result = visitor.visit_newtype_struct(Tracer { record, place });
        record.leave();
        result
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let Tracer { record, place } = self;
        let inner = record.inner(place, Kind::Option);
        // A type around it may refuse `None`.
        let enters = record.enters(place, inner) || record.enters_again(inner);
        if !enters {
            return visitor.visit_none();
        }
        record.name_inner(inner, std::any::type_name::<V::Value>());
        record.open(inner)?;
        let result = visitor.visit_some(Tracer { record, place: inner });
        record.close(inner, result)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let Tracer { record, place } = self;
        let inner = record.inner(place, Kind::Seq);
        let left = usize::from(record.places[place].failures.min(MAX_LIST))
            .max(usize::from(record.enters(place, inner)));
        visitor.visit_seq(Elements::new(record, vec![inner], left))
    }

    fn deserialize_tuple<V: Visitor<'de>>(mut self, len: usize, visitor: V) -> Result<V::Value> {
        let places = self.elements(len);
        visitor.visit_seq(Elements::new(self.record, places, len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        let Tracer { record, place } = self;
        let new = |record: &mut Record| Body::Tuple(record.new_places(len));
        let number = record.type_of::<V>(place, name, new);
        let places = match &record.types[number].body {
            Body::Tuple(places) => places.clone(),
            _ => Vec::new(),
        };
        visitor.visit_seq(Elements::new(record, places, len))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let Tracer { record, place } = self;
        if matches!(record.places[place].kind, Kind::Unknown) {
            let (key, value) = (record.place(), record.place());
            let name = record.name_of::<V>(place);
            record.is(place, Kind::Map(key, value, name));
        } else {
            record.is(place, Kind::Map(VOID, VOID, String::new()));
        }
        let (key, value) = match record.places[place].kind {
            Kind::Map(key, value, _) => (key, value),
            _ => (VOID, VOID),
        };
        let enters = record.enters(place, key) || record.enters(place, value);
        let left = record.places[place].failures.min(MAX_LIST).max(u8::from(enters));
        visitor.visit_map(Entries { record, key, value, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let Tracer { record, place } = self;
        let new = |record: &mut Record| Body::Struct(record.group(fields));
        let number = record.type_of::<V>(place, name, new);
        match record.types[number].body {
            Body::Struct(group) => record.fields(group, visitor),
            _ => Err(Stop::default()),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let Tracer { record, place } = self;
        let new = |_: &mut Record| Body::Enum(variants.iter().map(|v| Variant::new(v)).collect());
        let number = record.type_of::<V>(place, name, new);
        let variant = record.choose(number);
        record.variant(number, variant, |record| {
            visitor.visit_enum(Chosen { record, number, variant })
        })
    }

    /// The type decides by the value.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let sample = self.record.sample % 7;
        self.record.opaque::<V>(self.place);
        let void = Elements { record: self.record, places: vec![], left: 0 };
        match sample {
            0 => visitor.visit_unit(),
            1 => visitor.visit_bool(false),
            2 => visitor.visit_u64(1),
            3 => visitor.visit_borrowed_str("a"),
            4 => {
                visitor.visit_map(Entries { record: void.record, key: VOID, value: VOID, left: 0 })
            }
            5 => visitor.visit_f64(1.0),
            _ => visitor.visit_seq(void),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.record.opaque::<V>(self.place);
        visitor.visit_unit()
    }

    /// The name of a field of a type that has no list of them (`flatten`).
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.record.opaque::<V>(self.place);
        visitor.visit_borrowed_str("")
    }
}

/// Elements of a list or a tuple.
struct Elements<'r> {
    record: &'r mut Record,
    /// Their places, in reverse order. The last one is that of all further ones.
    places: Vec<usize>,
    left: usize,
}

impl<'r> Elements<'r> {
    fn new(record: &'r mut Record, mut places: Vec<usize>, left: usize) -> Self {
        places.reverse();
        Elements { record, places, left }
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Stop;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let place = match &self.places[..] {
            [] => VOID,
            [only] => *only,
            _ => self.places.pop().unwrap_or(VOID),
        };
        self.record.at(place, seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Entries of a map.
struct Entries<'r> {
    record: &'r mut Record,
    key: usize,
    value: usize,
    left: u8,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.record.at(self.key, seed).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        self.record.at(self.value, seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(usize::from(self.left))
    }
}

/// Fields by their names.
struct Fields<'r> {
    record: &'r mut Record,
    group: usize,
    order: std::vec::IntoIter<usize>,
    /// The place of the field whose name was read.
    place: usize,
}

impl<'r> Fields<'r> {
    fn new(record: &'r mut Record, group: usize, order: Vec<usize>) -> Self {
        Fields { record, group, order: order.into_iter(), place: VOID }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(field) = self.order.next() else { return Ok(None) };
        let group = &mut self.record.groups[self.group];
        group.asked += 1;
        group.last = field;
        let Field { name, place, .. } = group.fields[field];
        self.place = place;
        let name: BorrowedStrDeserializer<'de, Stop> = BorrowedStrDeserializer::new(name);
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        self.record.at(self.place, seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.order.len())
    }
}

/// The variant that was chosen.
struct Chosen<'r> {
    record: &'r mut Record,
    number: usize,
    variant: usize,
}

impl Chosen<'_> {
    /// The content of the variant, which is `new` if none is known.
    fn content(&mut self, new: impl FnOnce(&mut Record) -> Content) -> &Content {
        const UNKNOWN: &Content = &Content::Unknown;
        let (number, variant) = (self.number, self.variant);
        let is_unknown = (self.record.types[number].variant(variant))
            .is_some_and(|variant| matches!(variant.content, Content::Unknown));
        if is_unknown {
            let content = new(self.record);
            if let Some(variant) = self.record.types[number].variant(variant) {
                variant.content = content;
            }
            self.record.changes += 1;
        }
        self.record.types[number].variant(variant).map_or(UNKNOWN, |variant| &variant.content)
    }
}

impl<'de> EnumAccess<'de> for Chosen<'_> {
    type Error = Stop;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let known = self.record.types[self.number].variant(self.variant);
        let Some(variant) = known else { return Err(Stop::default()) };
        let value = if variant.by_number {
            seed.deserialize((self.variant as u32).into_deserializer())
        } else {
            let name: BorrowedStrDeserializer<'de, Stop> =
                BorrowedStrDeserializer::new(variant.name);
            seed.deserialize(name)
        };
        match value {
            Ok(value) => Ok((value, self)),
            Err(stop) => {
                // Refused by its number too, it is one attempt like others.
                if !std::mem::replace(&mut variant.by_number, true) {
                    self.record.excuse();
                }
                Err(stop)
            }
        }
    }
}

impl<'de> VariantAccess<'de> for Chosen<'_> {
    type Error = Stop;

    fn unit_variant(mut self) -> Result<()> {
        self.content(|_| Content::Unit);
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(mut self, seed: S) -> Result<S::Value> {
        let place = match self.content(|record| Content::One(record.place())) {
            Content::One(place) => *place,
            _ => VOID,
        };
        self.record.at(place, seed)
    }

    fn tuple_variant<V: Visitor<'de>>(mut self, len: usize, visitor: V) -> Result<V::Value> {
        let places = match self.content(|record| Content::Tuple(record.new_places(len))) {
            Content::Tuple(places) => places.clone(),
            _ => Vec::new(),
        };
        visitor.visit_seq(Elements::new(self.record, places, len))
    }

    fn struct_variant<V: Visitor<'de>>(
        mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match *self.content(|record| Content::Struct(record.group(fields))) {
            Content::Struct(group) => self.record.fields(group, visitor),
            _ => Err(Stop::default()),
        }
    }
}
