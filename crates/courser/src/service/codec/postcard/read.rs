//! Reads postcard within limits.
//!
//! postcard's own deserializer reads the scalars. Everything that contains other values is read
//! here: nesting, numbers of elements and heap are counted where they begin, so that types without
//! them cost nothing.

use postcard::Deserializer as Scalars;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use crate::service::codec::Heap;
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

impl<'de, 'h> Reader<'de, 'h> {
    #[inline]
    pub(super) fn new(bytes: &'de [u8], heap: Heap<'h>) -> Self {
        Reader { rest: bytes, limits: Limits::new(heap) }
    }

    /// Reads a scalar, a string, or bytes.
    #[inline]
    fn scalar<T: Deserialize<'de>>(&mut self) -> Result<T> {
        let mut scalars = Scalars::from_bytes(self.rest);
        let value = T::deserialize(&mut scalars)?;
        self.rest = scalars.finalize()?;
        Ok(value)
    }

    /// Reads an integer without a sign, which is mostly one byte.
    #[inline]
    fn unsigned<T: Deserialize<'de> + From<u8>>(&mut self) -> Result<T> {
        match self.rest.split_first() {
            Some((first, rest)) if *first < 0x80 => {
                self.rest = rest;
                Ok(T::from(*first))
            }
            _ => self.scalar(),
        }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) =
            self.rest.split_first().ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Reads the number of elements of a list or map, each of which has a byte at least.
    #[inline]
    fn count(&mut self) -> Result<usize> {
        let count: usize = self.unsigned()?;
        if count > self.rest.len() { Err(Cause::Elements.into()) } else { Ok(count) }
    }

    /// Reads values whose number is a part of their type.
    #[inline]
    fn fields<V: Visitor<'de>>(&mut self, left: usize, visitor: V) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        visitor.visit_seq(Fields { reader: self, left })
    }
}

macro_rules! scalars {
    ($read:ident: $($deserialize:ident $visit:ident,)*) => {
        $(#[inline]
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            let value = self.$read()?;
            visitor.$visit(value)
        })*
    };
}

macro_rules! need_names {
    ($($deserialize:ident)*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
            Err(Cause::Names.into())
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de, '_> {
    type Error = Fault;

    scalars! {
        unsigned:
        deserialize_u16 visit_u16,
        deserialize_u32 visit_u32,
        deserialize_u64 visit_u64,
        deserialize_u128 visit_u128,
    }
    scalars! {
        scalar:
        deserialize_bool visit_bool,
        deserialize_i8 visit_i8,
        deserialize_i16 visit_i16,
        deserialize_i32 visit_i32,
        deserialize_i64 visit_i64,
        deserialize_i128 visit_i128,
        deserialize_f32 visit_f32,
        deserialize_f64 visit_f64,
        deserialize_char visit_char,
        deserialize_str visit_borrowed_str,
        deserialize_string visit_borrowed_str,
        deserialize_bytes visit_borrowed_bytes,
        deserialize_byte_buf visit_borrowed_bytes,
    }
    need_names! { deserialize_any deserialize_identifier deserialize_ignored_any }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let value = self.byte()?;
        visitor.visit_u8(value)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.byte()? {
            0 => {
                self.charge_box::<V::Value>()?;
                visitor.visit_none()
            }
            1 => {
                self.charge_box::<V::Value>()?;
                self.deeper(|reader| visitor.visit_some(reader))
            }
            _ => Err(postcard::Error::DeserializeBadOption.into()),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_unit()
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
        let left = self.count()?;
        self.deeper(|reader| visitor.visit_seq(Elements::new(reader, left)))
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.fields(len, visitor)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(len, visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.count()?;
        self.deeper(|reader| visitor.visit_map(Entries::new(reader, left)))
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(fields.len(), visitor)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.charge_box::<V::Value>()?;
        visitor.visit_enum(Variant(self))
    }
}

/// Values whose number is a part of their type.
struct Fields<'a, 'de, 'h> {
    reader: &'a mut Reader<'de, 'h>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Fields<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant of an enum.
struct Variant<'a, 'de, 'h>(&'a mut Reader<'de, 'h>);

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let number: u32 = self.0.unsigned()?;
        let value = seed.deserialize(IntoDeserializer::<Fault>::into_deserializer(number))?;
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        self.0.deeper(|reader| seed.deserialize(reader))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.0.deeper(|reader| reader.fields(len, visitor))
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.0.deeper(|reader| reader.fields(fields.len(), visitor))
    }
}
