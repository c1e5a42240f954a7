//! Writes MessagePack.

use serde::ser::{self, Serialize};

use super::marker::{
    ARRAY_16, ARRAY_32, BYTES_8, BYTES_16, BYTES_32, F32, F64, FALSE, FIX_ARRAY, FIX_MAP, FIX_TEXT,
    I8, I16, I32, I64, MAP_16, MAP_32, NEGATIVE, NIL, SOME, TEXT_8, TEXT_16, TEXT_32, TRUE, U8,
    U16, U32, U64,
};
use crate::service::codec::byte_list::{bytes, exact_len, is_byte};
use crate::service::codec::fault::{Cause, Fault, MAX_LEVELS, Result};
use crate::service::writer::Writer;

/// A serializer of a message.
pub(super) struct Encoder<'a, 'w> {
    out: &'a mut Writer<'w>,
    /// Levels of nesting that are left.
    levels: u32,
    /// A position, and the number of options whose content begins there.
    options: (usize, u32),
}

impl<'a, 'w> Encoder<'a, 'w> {
    #[inline]
    pub(super) fn new(out: &'a mut Writer<'w>) -> Self {
        Encoder { out, levels: MAX_LEVELS, options: (0, 0) }
    }

    #[inline]
    fn push(&mut self, byte: u8) -> Result<()> {
        self.out.push(byte).map_err(|_| Cause::Room.into())
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.extend(bytes).map_err(|_| Cause::Room.into())
    }

    /// Writes a marker and bytes.
    #[inline]
    fn marked<const N: usize>(&mut self, marker: u8, bytes: [u8; N]) -> Result<()> {
        let mut all = [marker; 9];
        all[1..=N].copy_from_slice(&bytes);
        self.extend(&all[..=N])
    }

    #[inline]
    fn unsigned(&mut self, value: u64) -> Result<()> {
        match value {
            0..0x80 => self.push(value as u8),
            0x80..=0xff => self.marked(U8, [value as u8]),
            0x100..=0xffff => self.marked(U16, (value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.marked(U32, (value as u32).to_be_bytes()),
            _ => self.marked(U64, value.to_be_bytes()),
        }
    }

    #[inline]
    fn signed(&mut self, value: i64) -> Result<()> {
        match value {
            0.. => self.unsigned(value as u64),
            -32..0 => self.push(NEGATIVE | value as u8),
            -0x80..-32 => self.marked(I8, [value as u8]),
            -0x8000..-0x80 => self.marked(I16, (value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.marked(I32, (value as i32).to_be_bytes()),
            _ => self.marked(I64, value.to_be_bytes()),
        }
    }

    /// Writes a length behind its marker. Lengths of 32 bits are enough for any message.
    fn length(&mut self, markers: [u8; 2], len: usize) -> Result<()> {
        match (u16::try_from(len), u32::try_from(len)) {
            (Ok(len), _) => self.marked(markers[0], len.to_be_bytes()),
            (_, Ok(len)) => self.marked(markers[1], len.to_be_bytes()),
            _ => Err(Cause::Room.into()),
        }
    }

    #[inline]
    fn array(&mut self, len: usize) -> Result<()> {
        if len < 16 {
            return self.push(FIX_ARRAY | len as u8);
        }
        self.length([ARRAY_16, ARRAY_32], len)
    }

    #[inline]
    fn map(&mut self, len: usize) -> Result<()> {
        if len < 16 {
            return self.push(FIX_MAP | len as u8);
        }
        self.length([MAP_16, MAP_32], len)
    }

    #[inline]
    fn text(&mut self, text: &str) -> Result<()> {
        match text.len() {
            len @ 0..32 => self.push(FIX_TEXT | len as u8)?,
            len @ 32..256 => self.marked(TEXT_8, [len as u8])?,
            len => self.length([TEXT_16, TEXT_32], len)?,
        }
        self.extend(text.as_bytes())
    }

    fn bytes_header(&mut self, len: usize) -> Result<()> {
        match u8::try_from(len) {
            Ok(len) => self.marked(BYTES_8, [len]),
            Err(_) => self.length([BYTES_16, BYTES_32], len),
        }
    }

    fn nil(&mut self) -> Result<()> {
        let (position, options) = self.options;
        if options > 0 && position == self.out.position() {
            for _ in 0..options {
                self.push(SOME)?;
            }
        }
        self.push(NIL)
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

    /// Begins the content of a variant.
    #[inline]
    fn variant(&mut self, name: &str) -> Result<()> {
        self.push(FIX_MAP | 1)?;
        self.text(name)?;
        self.deeper()
    }

    #[inline]
    fn counted(&mut self, left: usize, is_variant: bool) -> Result<Counted<'_, 'a, 'w>> {
        self.deeper()?;
        Ok(Counted { encoder: self, left, is_variant })
    }
}

macro_rules! integers {
    ($($serialize:ident $type:ty, $write:ident $as:ty;)*) => {
        $(#[inline]
        fn $serialize(self, value: $type) -> Result<()> {
            self.$write(<$as>::from(value))
        })*
    };
}

impl<'s, 'a, 'w> ser::Serializer for &'s mut Encoder<'a, 'w> {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Counted<'s, 'a, 'w>;
    type SerializeTuple = Counted<'s, 'a, 'w>;
    type SerializeTupleStruct = Counted<'s, 'a, 'w>;
    type SerializeTupleVariant = Counted<'s, 'a, 'w>;
    type SerializeMap = Counted<'s, 'a, 'w>;
    type SerializeStruct = Counted<'s, 'a, 'w>;
    type SerializeStructVariant = Counted<'s, 'a, 'w>;

    integers! {
        serialize_u8 u8, unsigned u64;
        serialize_u16 u16, unsigned u64;
        serialize_u32 u32, unsigned u64;
        serialize_u64 u64, unsigned u64;
        serialize_i8 i8, signed i64;
        serialize_i16 i16, signed i64;
        serialize_i32 i32, signed i64;
        serialize_i64 i64, signed i64;
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_u128(self, value: u128) -> Result<()> {
        match u64::try_from(value) {
            Ok(value) => self.unsigned(value),
            Err(_) => self.serialize_bytes(&value.to_be_bytes()),
        }
    }

    fn serialize_i128(self, value: i128) -> Result<()> {
        match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => self.signed(value),
            (_, Ok(value)) => self.unsigned(value),
            _ => self.serialize_bytes(&value.to_be_bytes()),
        }
    }

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<()> {
        self.push(if value { TRUE } else { FALSE })
    }

    #[inline]
    fn serialize_f32(self, value: f32) -> Result<()> {
        self.marked(F32, value.to_be_bytes())
    }

    #[inline]
    fn serialize_f64(self, value: f64) -> Result<()> {
        self.marked(F64, value.to_be_bytes())
    }

    fn serialize_char(self, value: char) -> Result<()> {
        self.text(value.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<()> {
        self.text(text)
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<()> {
        self.bytes_header(bytes.len())?;
        self.extend(bytes)
    }

    #[inline]
    fn serialize_none(self) -> Result<()> {
        self.nil()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        let here = self.out.position();
        self.options = match self.options {
            (position, options) if position == here => (here, options + 1),
            _ => (here, 1),
        };
        self.deeper()?;
        value.serialize(&mut *self)?;
        self.ended();
        Ok(())
    }

    #[inline]
    fn serialize_unit(self) -> Result<()> {
        self.nil()
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        self.nil()
    }

    #[inline]
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<()> {
        self.text(variant)
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
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<()> {
        self.variant(variant)?;
        value.serialize(&mut *self)?;
        self.ended();
        Ok(())
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Counted<'s, 'a, 'w>> {
        self.serialize_tuple(len.ok_or(Cause::Unknown)?)
    }

    /// Bytes are recognized by the name of their type, which costs nothing at run time.
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
            self.bytes_header(len)?;
            return bytes(items, len, |part| self.extend(part));
        }
        let mut list = self.serialize_seq(len)?;
        for item in items {
            ser::SerializeSeq::serialize_element(&mut list, &item)?;
        }
        list.finish()
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Counted<'s, 'a, 'w>> {
        self.array(len)?;
        self.counted(len, false)
    }

    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Counted<'s, 'a, 'w>> {
        self.serialize_tuple(len)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Counted<'s, 'a, 'w>> {
        self.variant(variant)?;
        self.array(len)?;
        self.counted(len, true)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Counted<'s, 'a, 'w>> {
        let len = len.ok_or(Cause::Unknown)?;
        self.map(len)?;
        self.counted(len, false)
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Counted<'s, 'a, 'w>> {
        self.serialize_map(Some(len))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Counted<'s, 'a, 'w>> {
        self.variant(variant)?;
        self.map(len)?;
        self.counted(len, true)
    }
}

/// Values whose number was written, with a check that there are as many.
pub(super) struct Counted<'s, 'a, 'w> {
    encoder: &'s mut Encoder<'a, 'w>,
    left: usize,
    /// They are the content of a variant, which is a level of its own.
    is_variant: bool,
}

impl Counted<'_, '_, '_> {
    #[inline]
    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or(Cause::Miscounted)?;
        value.serialize(&mut *self.encoder)
    }

    #[inline]
    fn finish(self) -> Result<()> {
        if self.left > 0 {
            return Err(Cause::Miscounted.into());
        }
        self.encoder.ended();
        if self.is_variant {
            self.encoder.ended();
        }
        Ok(())
    }
}

macro_rules! counted {
    ($($trait:ident $serialize:ident $($name:ident)?,)*) => {
        $(impl ser::$trait for Counted<'_, '_, '_> {
            type Ok = ();
            type Error = Fault;

            #[inline]
            fn $serialize<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<()> {
                $(self.encoder.text($name)?;)?
                self.value(value)
            }

            #[inline]
            fn end(self) -> Result<()> {
                self.finish()
            }
        })*
    };
}

counted! {
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field,
    SerializeStruct serialize_field name,
    SerializeStructVariant serialize_field name,
}

impl ser::SerializeMap for Counted<'_, '_, '_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        key.serialize(&mut *self.encoder)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.value(value)
    }

    #[inline]
    fn end(self) -> Result<()> {
        self.finish()
    }
}
