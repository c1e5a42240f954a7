//! Reads shapes from the network. The one encoding of each shape is accepted.

use super::model::{Body, Content, Field, Form, Named, Runs, Scalar, Shape, Variant};
use super::write::{
    ENUM, FIELDS, MAP, NAMED, ONE, OPAQUE, OPTION, SEQ, SEVERAL, STRUCT, TUPLE, TUPLE_STRUCT, UNIT,
    VERSION,
};
use crate::error::service::DecodeError;

/// Bytes of a shape on the network.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// Forms within each other, without references to named types.
const MAX_DEPTH: usize = 128;

impl Shape {
    /// Reads a shape from the network.
    ///
    /// # Errors
    /// The bytes are no shape of this version, or more than 64 KiB, or forms are nested by more than
    /// 128 levels.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_BYTES {
            return Err(DecodeError::Form("a shape of more than 64 KiB"));
        }
        let mut input = Input { rest: bytes };
        let shape = input.shape().ok_or(DecodeError::Form("bytes that are no shape"))?;
        // Types in another order, runs of equal elements, or numbers that are longer than needed.
        if shape.encode(true) != bytes || shape.clone().ordered() != shape {
            return Err(DecodeError::Form("a shape in another form than its only one"));
        }
        Ok(shape)
    }
}

/// Bytes that are read. `None` where they are no shape.
struct Input<'b> {
    rest: &'b [u8],
}

impl Input<'_> {
    fn shape(&mut self) -> Option<Shape> {
        if self.byte()? != VERSION {
            return None;
        }
        let root = self.form(0)?;
        let types = self.list(|input| {
            let name = input.text()?;
            let body = match input.byte()? {
                STRUCT => Body::Struct(input.fields()?),
                TUPLE_STRUCT => Body::Tuple(input.runs(0)?),
                ENUM => Body::Enum(input.list(Self::variant)?),
                _ => return None,
            };
            Some(Named { name, body })
        })?;
        let mut shape = Shape { root, types };
        let (mut is_known, number) = (true, shape.types.len());
        let mut check = |named: usize| {
            is_known &= named < number;
            named
        };
        shape.root.renumber(&mut check);
        shape.types.iter_mut().for_each(|named| named.body.renumber(&mut check));
        (is_known && self.rest.is_empty()).then_some(shape)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn count(&mut self) -> Option<u32> {
        let mut value = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).ok();
            }
        }
        None
    }

    fn text(&mut self) -> Option<Box<str>> {
        let len = self.count()? as usize;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(std::str::from_utf8(text).ok()?.into())
    }

    /// Reads a list, whose elements have a byte at least.
    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.count()? as usize;
        if len > self.rest.len() {
            return None;
        }
        // Not with capacity: an element may be larger than its bytes.
        let mut list = Vec::new();
        for _ in 0..len {
            list.push(read(self)?);
        }
        Some(list)
    }

    fn form(&mut self, depth: usize) -> Option<Form> {
        if depth >= MAX_DEPTH {
            return None;
        }
        let inner = depth + 1;
        Some(match self.byte()? {
            OPAQUE => Form::Opaque(self.text()?),
            OPTION => Form::Option(Box::new(self.form(inner)?)),
            SEQ => Form::Seq(Box::new(self.form(inner)?)),
            MAP => Form::Map(Box::new((self.form(inner)?, self.form(inner)?))),
            TUPLE => Form::Tuple(self.runs(inner)?),
            NAMED => Form::Named(self.count()? as usize),
            scalar => Form::Scalar(*Scalar::ALL.get(usize::from(scalar))?),
        })
    }

    fn runs(&mut self, depth: usize) -> Option<Runs> {
        self.list(|input| {
            let count = input.count()?;
            (count > 0).then_some((count, input.form(depth)?))
        })
    }

    fn fields(&mut self) -> Option<Vec<Field>> {
        self.list(|input| {
            let names = input.list(Self::text)?;
            let form = input.form(0)?;
            (!names.is_empty()).then_some(Field { names, form, is_required: false })
        })
    }

    fn variant(&mut self) -> Option<Variant> {
        let name = self.text()?;
        let content = match self.byte()? {
            UNIT => Content::Unit,
            ONE => Content::One(self.form(0)?),
            SEVERAL => Content::Tuple(self.runs(0)?),
            FIELDS => Content::Struct(self.fields()?),
            _ => return None,
        };
        Some(Variant { name, content })
    }
}
