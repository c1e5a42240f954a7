//! Writes postcard that can be read back.
//!
//! postcard's own serializer writes the scalars. Everything that contains other values is written
//! here, so that a value is refused which the other end would read as another one, or not at all.

use std::fmt::Display;

use postcard::Serializer as Scalars;
use postcard::ser_flavors::Flavor;
use serde::ser::{self, Serialize};

use crate::service::codec::byte_list::{bytes, exact_len, is_byte};
use crate::service::codec::fault::{Cause, Fault, MAX_LEVELS, Result};
use crate::service::writer::Writer;

/// Where postcard's serializer writes.
struct Out<'a, 'w>(&'a mut Writer<'w>);

impl Flavor for Out<'_, '_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend(bytes).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// A serializer of a message.
pub(super) struct Encoder<'a, 'w> {
    out: &'a mut Writer<'w>,
    /// Levels of nesting that are left.
    levels: u32,
}

impl<'a, 'w> Encoder<'a, 'w> {
    #[inline]
    pub(super) fn new(out: &'a mut Writer<'w>) -> Self {
        Encoder { out, levels: MAX_LEVELS }
    }

    /// Writes a scalar, a string, or bytes.
    #[inline]
    fn scalar<T: Serialize>(&mut self, value: T) -> Result<()> {
        Ok(value.serialize(&mut Scalars { output: Out(self.out) })?)
    }

    #[inline]
    fn scalars(&mut self) -> Scalars<Out<'_, 'w>> {
        Scalars { output: Out(self.out) }
    }

    /// Writes an integer without a sign, which is mostly one byte.
    #[inline]
    fn unsigned<T: Serialize + Copy + TryInto<u8>>(&mut self, value: T) -> Result<()> {
        match value.try_into() {
            Ok(byte) if byte < 0x80 => self.byte(byte),
            _ => self.scalar(value),
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) -> Result<()> {
        Ok(self.out.push(byte).map_err(|_| postcard::Error::SerializeBufferFull)?)
    }

    /// Begins what is one level deeper.
    #[inline]
    fn deeper(&mut self) -> Result<()> {
        self.levels = self.levels.checked_sub(1).ok_or(Cause::Depth)?;
        Ok(())
    }

    #[inline]
    fn ended(&mut self) {
        self.levels += 1;
    }
}

macro_rules! scalars {
    ($write:ident: $($serialize:ident $type:ty,)*) => {
        $(#[inline]
        fn $serialize(self, value: $type) -> Result<()> {
            self.$write(value)
        })*
    };
}

impl<'s, 'a, 'w> ser::Serializer for &'s mut Encoder<'a, 'w> {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Counted<'s, 'a, 'w>;
    type SerializeTuple = Fields<'s, 'a, 'w>;
    type SerializeTupleStruct = Fields<'s, 'a, 'w>;
    type SerializeTupleVariant = Fields<'s, 'a, 'w>;
    type SerializeMap = Counted<'s, 'a, 'w>;
    type SerializeStruct = Fields<'s, 'a, 'w>;
    type SerializeStructVariant = Fields<'s, 'a, 'w>;

    scalars! {
        unsigned:
        serialize_u16 u16,
        serialize_u32 u32,
        serialize_u64 u64,
        serialize_u128 u128,
    }
    scalars! {
        scalar:
        serialize_bool bool,
        serialize_i8 i8,
        serialize_i16 i16,
        serialize_i32 i32,
        serialize_i64 i64,
        serialize_i128 i128,
        serialize_f32 f32,
        serialize_f64 f64,
        serialize_char char,
        serialize_str &str,
    }

    #[inline]
    fn serialize_u8(self, value: u8) -> Result<()> {
        self.byte(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<()> {
        Ok(ser::Serializer::serialize_bytes(&mut self.scalars(), bytes)?)
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, text: &T) -> Result<()> {
        Ok(ser::Serializer::collect_str(&mut self.scalars(), text)?)
    }

    #[inline]
    fn serialize_none(self) -> Result<()> {
        self.byte(0)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        self.byte(1)?;
        self.deeper()?;
        value.serialize(&mut *self)?;
        self.ended();
        Ok(())
    }

    #[inline]
    fn serialize_unit(self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(self, _: &'static str, number: u32, _: &'static str) -> Result<()> {
        self.unsigned(number)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<()> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        number: u32,
        _: &'static str,
        value: &T,
    ) -> Result<()> {
        self.unsigned(number)?;
        self.deeper()?;
        value.serialize(&mut *self)?;
        self.ended();
        Ok(())
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Counted<'s, 'a, 'w>> {
        Counted::new(self, len)
    }

    /// Bytes are recognized by the name of their type, which costs nothing at run time. Others are
    /// written one by one.
    #[inline]
    fn collect_seq<I>(self, items: I) -> Result<()>
    where
        I: IntoIterator<Item: Serialize>,
    {
        let items = items.into_iter();
        let len = exact_len(&items);
        if let Some(len) = len
            && is_byte::<I::Item>()
        {
            self.unsigned(len)?;
            return bytes(items, len, |part| {
                Ok(self.out.extend(part).map_err(|_| postcard::Error::SerializeBufferFull)?)
            });
        }
        let mut list = self.serialize_seq(len)?;
        for item in items {
            ser::SerializeSeq::serialize_element(&mut list, &item)?;
        }
        ser::SerializeSeq::end(list)
    }

    #[inline]
    fn serialize_tuple(self, _: usize) -> Result<Fields<'s, 'a, 'w>> {
        Ok(Fields { encoder: self, is_variant: false })
    }

    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Fields<'s, 'a, 'w>> {
        Ok(Fields { encoder: self, is_variant: false })
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        number: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Fields<'s, 'a, 'w>> {
        Fields::variant(self, number)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Counted<'s, 'a, 'w>> {
        Counted::new(self, len)
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields<'s, 'a, 'w>> {
        Ok(Fields { encoder: self, is_variant: false })
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        number: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Fields<'s, 'a, 'w>> {
        Fields::variant(self, number)
    }
}

/// A list or map, with a check that it has as many elements as it states, each with a byte at
/// least.
pub(super) struct Counted<'s, 'a, 'w> {
    encoder: &'s mut Encoder<'a, 'w>,
    left: usize,
    /// The least position behind it.
    end: usize,
}

impl<'s, 'a, 'w> Counted<'s, 'a, 'w> {
    #[inline]
    fn new(encoder: &'s mut Encoder<'a, 'w>, len: Option<usize>) -> Result<Self> {
        let left = len.ok_or(Cause::Unknown)?;
        encoder.unsigned(left)?;
        encoder.deeper()?;
        let end = encoder.out.position().saturating_add(left);
        Ok(Counted { encoder, left, end })
    }

    #[inline]
    fn count(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or(Cause::Miscounted)?;
        Ok(())
    }

    #[inline]
    fn finish(self) -> Result<()> {
        if self.left > 0 {
            return Err(Cause::Miscounted.into());
        }
        if self.encoder.out.position() < self.end {
            return Err(Cause::Elements.into());
        }
        self.encoder.ended();
        Ok(())
    }
}

impl ser::SerializeSeq for Counted<'_, '_, '_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.count()?;
        value.serialize(&mut *self.encoder)
    }

    #[inline]
    fn end(self) -> Result<()> {
        self.finish()
    }
}

impl ser::SerializeMap for Counted<'_, '_, '_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.count()?;
        key.serialize(&mut *self.encoder)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(&mut *self.encoder)
    }

    #[inline]
    fn end(self) -> Result<()> {
        self.finish()
    }
}

/// Values whose number is a part of their type.
pub(super) struct Fields<'s, 'a, 'w> {
    encoder: &'s mut Encoder<'a, 'w>,
    is_variant: bool,
}

impl<'s, 'a, 'w> Fields<'s, 'a, 'w> {
    #[inline]
    fn variant(encoder: &'s mut Encoder<'a, 'w>, number: u32) -> Result<Self> {
        encoder.unsigned(number)?;
        encoder.deeper()?;
        Ok(Fields { encoder, is_variant: true })
    }
}

macro_rules! fields {
    ($($trait:ident $serialize:ident $($name:ident)?,)*) => {
        $(impl ser::$trait for Fields<'_, '_, '_> {
            type Ok = ();
            type Error = Fault;

            #[inline]
            fn $serialize<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<()> {
                $(let _ = $name;)?
                value.serialize(&mut *self.encoder)
            }

            $(fn skip_field(&mut self, $name: &'static str) -> Result<()> {
                Err(Cause::Skipped($name).into())
            })?

            #[inline]
            fn end(self) -> Result<()> {
                if self.is_variant {
                    self.encoder.ended();
                }
                Ok(())
            }
        })*
    };
}

fields! {
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field,
    SerializeStruct serialize_field name,
    SerializeStructVariant serialize_field name,
}
