//! Required fields of shapes: those without a default, which a writer must have.
//!
//! They have no place in the bytes of a shape, which earlier versions read, and none in its fingerprint.
//! On the network they follow the shapes of a method: a bit for each field, in the order of the bytes,
//! from the lowest bit of the first byte on.

use super::model::{Body, Content, Field, Shape};

impl Body {
    fn fields(&self) -> impl Iterator<Item = &Field> {
        let (own, variants) = match self {
            Body::Struct(fields) => (&fields[..], &[][..]),
            Body::Tuple(_) => (&[][..], &[][..]),
            Body::Enum(variants) => (&[][..], &variants[..]),
        };
        let of_variants = variants.iter().flat_map(|variant| match &variant.content {
            Content::Struct(fields) => &fields[..],
            _ => &[],
        });
        own.iter().chain(of_variants)
    }

    fn fields_mut(&mut self) -> impl Iterator<Item = &mut Field> {
        let (own, variants) = match self {
            Body::Struct(fields) => (&mut fields[..], &mut [][..]),
            Body::Tuple(_) => (&mut [][..], &mut [][..]),
            Body::Enum(variants) => (&mut [][..], &mut variants[..]),
        };
        let of_variants = variants.iter_mut().flat_map(|variant| match &mut variant.content {
            Content::Struct(fields) => &mut fields[..],
            _ => &mut [],
        });
        own.iter_mut().chain(of_variants)
    }
}

impl Shape {
    /// The bits of the fields.
    pub(super) fn required(&self) -> Vec<u8> {
        let mut bits = Vec::new();
        for (at, field) in self.types.iter().flat_map(|named| named.body.fields()).enumerate() {
            if at % 8 == 0 {
                bits.push(0);
            }
            bits[at / 8] |= u8::from(field.is_required) << (at % 8);
        }
        bits
    }

    /// Reads the bits of the fields. Returns the bytes behind them, or `None` if they end early, or bits
    /// are set that no field has.
    pub(super) fn read_required<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let (count, fields) = (self.required().len(), self.types.iter_mut());
        let (bits, rest) = bytes.split_at_checked(count)?;
        for (at, field) in fields.flat_map(|named| named.body.fields_mut()).enumerate() {
            field.is_required = bits[at / 8] >> (at % 8) & 1 == 1;
        }
        (self.required() == bits).then_some(rest)
    }

    /// Makes one type of two that have the same fields: those are required that both require.
    pub(super) fn require_less(&mut self, kept: usize, other: usize) {
        let other: Vec<bool> = self.types[other].body.fields().map(|f| f.is_required).collect();
        for (field, is_required) in self.types[kept].body.fields_mut().zip(other) {
            field.is_required &= is_required;
        }
    }
}
