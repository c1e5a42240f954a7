//! Reads MessagePack within limits.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::marker::{
    ARRAY_16, ARRAY_32, BYTES_8, BYTES_32, F32, F64, FALSE, FIX_ARRAY, FIX_MAP, FIX_TEXT, I8, I16,
    I32, I64, MAP_16, MAP_32, NEGATIVE, NIL, SOME, TEXT_8, TEXT_32, TRUE, U8, U16, U32, U64,
};
use crate::service::codec::Heap;
use crate::service::codec::byte_list::is_byte;
use crate::service::codec::fault::{Cause, Fault, Result};
use crate::service::codec::limits::{Elements, Entries, Limited, Limits};

/// A deserializer of a message.
pub(super) struct Reader<'de, 'h> {
    rest: &'de [u8],
    limits: Limits<'h>,
}

impl<'h> Limited<'h> for Reader<'_, 'h> {
    #[inline]
    fn limits(&mut self) -> &mut Limits<'h> {
        &mut self.limits
    }

    #[inline]
    fn left(&self) -> usize {
        self.rest.len()
    }
}

/// A value without its content.
enum Value<'de> {
    Nil,
    /// An option whose content begins with nil.
    Some,
    Bool(bool),
    Unsigned(u64),
    /// An integer below 0.
    Negative(i64),
    F32(f32),
    F64(f64),
    Text(&'de str),
    Bytes(&'de [u8]),
    Array(usize),
    Map(usize),
}

impl Value<'_> {
    fn name(&self) -> &'static str {
        match self {
            Value::Nil => "nothing",
            Value::Some => "an option",
            Value::Bool(_) => "a boolean",
            Value::Unsigned(_) | Value::Negative(_) => "an integer",
            Value::F32(_) => "an f32",
            Value::F64(_) => "an f64",
            Value::Text(_) => "a text",
            Value::Bytes(_) => "bytes",
            Value::Array(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// The error where another type is read.
    #[cold]
    fn not(&self, read: &'static str) -> Fault {
        Cause::Type { sent: self.name(), read }.into()
    }
}

impl<'de, 'h> Reader<'de, 'h> {
    #[inline]
    pub(super) fn new(bytes: &'de [u8], heap: Heap<'h>) -> Self {
        Reader { rest: bytes, limits: Limits::new(heap) }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or(Cause::End)?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'de [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Cause::End)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the bytes of a number.
    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Cause::End)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads a length of 8, 16 or 32 bits, by the place of its marker.
    fn length(&mut self, of: u8) -> Result<usize> {
        Ok(match of {
            0 => usize::from(self.byte()?),
            1 => usize::from(u16::from_be_bytes(self.array()?)),
            _ => u32::from_be_bytes(self.array()?) as usize,
        })
    }

    fn text(&mut self, len: usize) -> Result<&'de str> {
        std::str::from_utf8(self.take(len)?).map_err(|_| Cause::Utf8.into())
    }

    /// Checks the number of elements, each of which has some bytes at least.
    #[inline]
    fn counted(&self, len: usize, bytes: usize) -> Result<usize> {
        if len > self.rest.len() / bytes { Err(Cause::Elements.into()) } else { Ok(len) }
    }

    /// Reads a value up to its content.
    fn value(&mut self) -> Result<Value<'de>> {
        let marker = self.byte()?;
        Ok(match marker {
            0..FIX_MAP => Value::Unsigned(u64::from(marker)),
            FIX_MAP..FIX_ARRAY => Value::Map(self.counted(usize::from(marker & 15), 2)?),
            FIX_ARRAY..FIX_TEXT => Value::Array(self.counted(usize::from(marker & 15), 1)?),
            FIX_TEXT..NIL => Value::Text(self.text(usize::from(marker & 31))?),
            NIL => Value::Nil,
            SOME => Value::Some,
            FALSE | TRUE => Value::Bool(marker == TRUE),
            BYTES_8..=BYTES_32 => {
                let len = self.length(marker - BYTES_8)?;
                Value::Bytes(self.take(len)?)
            }
            F32 => Value::F32(f32::from_be_bytes(self.array()?)),
            F64 => Value::F64(f64::from_be_bytes(self.array()?)),
            U8 => Value::Unsigned(u64::from(self.byte()?)),
            U16 => Value::Unsigned(u64::from(u16::from_be_bytes(self.array()?))),
            U32 => Value::Unsigned(u64::from(u32::from_be_bytes(self.array()?))),
            U64 => Value::Unsigned(u64::from_be_bytes(self.array()?)),
            I8..=I64 => {
                let value = match marker {
                    I8 => i64::from(i8::from_be_bytes(self.array()?)),
                    I16 => i64::from(i16::from_be_bytes(self.array()?)),
                    I32 => i64::from(i32::from_be_bytes(self.array()?)),
                    _ => i64::from_be_bytes(self.array()?),
                };
                match u64::try_from(value) {
                    Ok(value) => Value::Unsigned(value),
                    Err(_) => Value::Negative(value),
                }
            }
            TEXT_8..=TEXT_32 => {
                let len = self.length(marker - TEXT_8)?;
                Value::Text(self.text(len)?)
            }
            ARRAY_16 | ARRAY_32 => {
                let len = self.length(marker - ARRAY_16 + 1)?;
                Value::Array(self.counted(len, 1)?)
            }
            MAP_16 | MAP_32 => {
                let len = self.length(marker - MAP_16 + 1)?;
                Value::Map(self.counted(len, 2)?)
            }
            NEGATIVE.. => Value::Negative(i64::from(marker as i8)),
            _ => return Err(Cause::Extension.into()),
        })
    }

    /// Reads an integer that is not below 0, if one follows. In registers, as [`Value`] is not.
    fn unsigned(&mut self) -> Option<u64> {
        let (marker, rest) = self.rest.split_first()?;
        let (value, rest) = match *marker {
            marker @ 0..FIX_MAP => (u64::from(marker), rest),
            U8 => rest.split_first().map(|(byte, rest)| (u64::from(*byte), rest))?,
            U16 => {
                rest.split_first_chunk().map(|(n, rest)| (u16::from_be_bytes(*n).into(), rest))?
            }
            U32 => {
                rest.split_first_chunk().map(|(n, rest)| (u32::from_be_bytes(*n).into(), rest))?
            }
            U64 => rest.split_first_chunk().map(|(n, rest)| (u64::from_be_bytes(*n), rest))?,
            _ => return None,
        };
        self.rest = rest;
        Some(value)
    }

    #[inline]
    fn integer<T: TryFrom<u64> + TryFrom<i64>>(&mut self, read: &'static str) -> Result<T> {
        match self.unsigned() {
            Some(sent) => match T::try_from(sent) {
                Ok(value) => Ok(value),
                Err(_) => Err(Cause::Range { sent: sent.into(), read }.into()),
            },
            None => self.signed(read),
        }
    }

    /// Reads an integer below 0, or one of a type with a sign.
    fn signed<T: TryFrom<u64> + TryFrom<i64>>(&mut self, read: &'static str) -> Result<T> {
        let (value, sent) = match self.value()? {
            Value::Unsigned(value) => (T::try_from(value).ok(), i128::from(value)),
            Value::Negative(value) => (T::try_from(value).ok(), i128::from(value)),
            other => return Err(other.not(read)),
        };
        value.ok_or_else(|| Cause::Range { sent, read }.into())
    }

    /// Reads a text, which is mostly short.
    #[inline]
    fn string(&mut self) -> Result<&'de str> {
        if let Some((first, rest)) = self.rest.split_first()
            && (FIX_TEXT..NIL).contains(first)
        {
            self.rest = rest;
            return self.text(usize::from(first & 31));
        }
        match self.value()? {
            Value::Text(text) => Ok(text),
            other => Err(other.not("a text")),
        }
    }

    /// Reads a name that is one of these, from this place on. Comparing bytes is faster than checking
    /// that they are a text.
    #[inline]
    fn known(
        &mut self,
        names: &'static [&'static str],
        from: usize,
    ) -> Option<(usize, &'static str)> {
        let (first, rest) = self.rest.split_first()?;
        if !(FIX_TEXT..NIL).contains(first) {
            return None;
        }
        let len = usize::from(first & 31);
        let (sent, rest) = rest.split_at_checked(len)?;
        let place = names.get(from..)?.iter().position(|name| name.as_bytes() == sent)?;
        self.rest = rest;
        Some((from + place, names[from + place]))
    }

    /// Reads the number of entries of a map or struct.
    #[inline]
    fn entries(&mut self, name: &'static str) -> Result<usize> {
        if let Some((first, rest)) = self.rest.split_first()
            && (FIX_MAP..FIX_ARRAY).contains(first)
        {
            self.rest = rest;
            return self.counted(usize::from(first & 15), 2);
        }
        match self.value()? {
            Value::Map(len) => Ok(len),
            other => Err(other.not(name)),
        }
    }

    fn is_next(&self, marker: u8) -> bool {
        self.rest.first() == Some(&marker)
    }

    /// Reads values whose number is a part of their type.
    #[inline]
    fn elements<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        match self.value()? {
            Value::Array(sent) if sent == len => self.list(sent, visitor),
            Value::Array(sent) => Err(de::Error::invalid_length(sent, &visitor)),
            other => Err(other.not("a tuple")),
        }
    }

    #[inline]
    fn list<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value> {
        self.deeper(|reader| {
            let mut elements = Elements::new(reader, len);
            let value = visitor.visit_seq(&mut elements)?;
            if elements.left == 0 { Ok(value) } else { Err(Cause::Unread.into()) }
        })
    }

    #[inline]
    fn bytes<V: Visitor<'de>>(&mut self, bytes: &'de [u8], visitor: V) -> Result<V::Value> {
        let mut elements = Bytes { reader: self, bytes: bytes.iter(), is_charged: false };
        let value = visitor.visit_seq(&mut elements)?;
        if elements.bytes.len() == 0 { Ok(value) } else { Err(Cause::Unread.into()) }
    }

    fn map<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value> {
        self.deeper(|reader| {
            let mut entries = Entries::new(reader, len);
            let value = visitor.visit_map(&mut entries)?;
            if entries.left == 0 { Ok(value) } else { Err(Cause::Unread.into()) }
        })
    }

    /// Reads fields by their names.
    #[inline]
    fn fields<V: Visitor<'de>>(
        &mut self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        let left = self.entries("a struct")?;
        self.deeper(|reader| {
            let mut fields = Fields { reader, left, names, next: 0 };
            let value = visitor.visit_map(&mut fields)?;
            if fields.left == 0 { Ok(value) } else { Err(Cause::Unread.into()) }
        })
    }

    /// Skips a value, without heap or stack.
    fn skip(&mut self) -> Result<()> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            left += match self.value()? {
                Value::Some => 1,
                Value::Array(len) => len as u64,
                Value::Map(len) => 2 * len as u64,
                _ => 0,
            };
        }
        Ok(())
    }
}

macro_rules! integers {
    ($($deserialize:ident $visit:ident $name:literal,)*) => {
        $(#[inline]
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            let value = self.integer($name)?;
            visitor.$visit(value)
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de, '_> {
    type Error = Fault;

    integers! {
        deserialize_i8 visit_i8 "i8",
        deserialize_i16 visit_i16 "i16",
        deserialize_i32 visit_i32 "i32",
        deserialize_i64 visit_i64 "i64",
        deserialize_u8 visit_u8 "u8",
        deserialize_u16 visit_u16 "u16",
        deserialize_u32 visit_u32 "u32",
        deserialize_u64 visit_u64 "u64",
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Unsigned(value) => visitor.visit_u128(u128::from(value)),
            Value::Bytes(bytes) => visitor.visit_u128(u128::from_be_bytes(sixteen(bytes)?)),
            Value::Negative(sent) => {
                Err(Cause::Range { sent: i128::from(sent), read: "u128" }.into())
            }
            other => Err(other.not("u128")),
        }
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Unsigned(value) => visitor.visit_i128(i128::from(value)),
            Value::Negative(value) => visitor.visit_i128(i128::from(value)),
            Value::Bytes(bytes) => visitor.visit_i128(i128::from_be_bytes(sixteen(bytes)?)),
            other => Err(other.not("i128")),
        }
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Bool(value) => visitor.visit_bool(value),
            other => Err(other.not("a boolean")),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::F32(value) => visitor.visit_f32(value),
            other => Err(other.not("f32")),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::F64(value) => visitor.visit_f64(value),
            Value::F32(value) => visitor.visit_f64(f64::from(value)),
            other => Err(other.not("f64")),
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let text = self.string()?;
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => visitor.visit_char(c),
            _ => Err(Value::Text(text).not("char")),
        }
    }

    #[inline]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let text = self.string()?;
        visitor.visit_borrowed_str(text)
    }

    #[inline]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    /// Also reads a list of integers.
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            Value::Array(len) => self.list(len, visitor),
            other => Err(other.not("bytes")),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        if self.is_next(NIL) {
            self.byte()?;
            return visitor.visit_none();
        }
        if self.is_next(SOME) {
            self.byte()?;
        }
        self.deeper(|reader| visitor.visit_some(reader))
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_next(NIL) {
            self.byte()?;
            return visitor.visit_unit();
        }
        match self.value()? {
            Value::Nil => visitor.visit_unit(),
            other => Err(other.not("nothing")),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Array(len) => self.list(len, visitor),
            Value::Bytes(bytes) => self.bytes(bytes, visitor),
            other => Err(other.not("a list")),
        }
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.elements(len, visitor)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.elements(len, visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let len = self.entries("a map")?;
        self.map(len, visitor)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(names, visitor)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        // A name, or a map of a name and the content.
        let has_content = self.is_next(FIX_MAP | 1);
        if has_content {
            self.byte()?;
        }
        visitor.visit_enum(Variant { reader: self, names, has_content })
    }

    #[inline]
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    #[inline]
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.value()? {
            Value::Nil => visitor.visit_unit(),
            Value::Some => self.deeper(|reader| visitor.visit_some(reader)),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Unsigned(value) => visitor.visit_u64(value),
            Value::Negative(value) => visitor.visit_i64(value),
            Value::F32(value) => visitor.visit_f32(value),
            Value::F64(value) => visitor.visit_f64(value),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            Value::Array(len) => self.list(len, visitor),
            Value::Map(len) => self.map(len, visitor),
        }
    }
}

/// The bytes of an integer of 128 bits.
fn sixteen(bytes: &[u8]) -> Result<[u8; 16]> {
    bytes.try_into().map_err(|_| Value::Bytes(bytes).not("an integer of 16 bytes"))
}

/// A byte string that is read as a list.
struct Bytes<'a, 'de, 'h> {
    reader: &'a mut Reader<'de, 'h>,
    bytes: std::slice::Iter<'de, u8>,
    /// The heap of all elements is counted.
    is_charged: bool,
}

impl<'de> SeqAccess<'de> for Bytes<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        if !self.is_charged && !is_byte::<S::Value>() {
            self.is_charged = true;
            self.reader.charge(self.bytes.len(), size_of::<S::Value>())?;
        }
        let Some(byte) = self.bytes.next() else { return Ok(None) };
        seed.deserialize(Byte(*byte)).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.bytes.len())
    }
}

/// A byte that is read as a `u8`, or as a newtype of one.
struct Byte(u8);

impl<'de> de::Deserializer<'de> for Byte {
    type Error = Fault;

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_u8(self.0)
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Fields of a struct, by their names.
struct Fields<'a, 'de, 'h> {
    reader: &'a mut Reader<'de, 'h>,
    left: usize,
    names: &'static [&'static str],
    /// The place of the name that is expected, as fields are sent in their order.
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        match self.reader.known(self.names, self.next) {
            Some((place, name)) => {
                self.next = place + 1;
                seed.deserialize(BorrowedStrDeserializer::<Fault>::new(name)).map(Some)
            }
            None => seed.deserialize(&mut *self.reader).map(Some),
        }
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        seed.deserialize(&mut *self.reader)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant of an enum.
struct Variant<'a, 'de, 'h> {
    reader: &'a mut Reader<'de, 'h>,
    names: &'static [&'static str],
    has_content: bool,
}

impl Variant<'_, '_, '_> {
    #[inline]
    fn content(&self) -> Result<()> {
        if self.has_content {
            Ok(())
        } else {
            Err(Cause::Type { sent: "a variant without content", read: "one with" }.into())
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let value = match self.reader.known(self.names, 0) {
            Some((_, name)) => seed.deserialize(BorrowedStrDeserializer::<Fault>::new(name))?,
            None => seed.deserialize(&mut *self.reader)?,
        };
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn unit_variant(self) -> Result<()> {
        match self.has_content {
            false => Ok(()),
            true => Err(Cause::Type { sent: "a variant with content", read: "one without" }.into()),
        }
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        self.content()?;
        self.reader.deeper(|reader| seed.deserialize(reader))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.content()?;
        self.reader.deeper(|reader| reader.elements(len, visitor))
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.content()?;
        self.reader.deeper(|reader| reader.fields(names, visitor))
    }
}
