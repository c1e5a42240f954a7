//! Rules by which a scalar of a reader has the values of a writer's.

use super::model::Scalar;

/// Returns whether the type has all values of another one.
pub(super) fn is_wider(to: Scalar, from: Scalar) -> bool {
    if (to, from) == (Scalar::F64, Scalar::F32) {
        return true;
    }
    let (Some((to_signed, to)), Some((from_signed, from))) = (to.integer(), from.integer()) else {
        return false;
    };
    if to_signed == from_signed { to >= from } else { to_signed && to > from }
}

impl Scalar {
    /// The sign and the bits of an integer: true if it has a sign.
    pub(super) fn integer(self) -> Option<(bool, u32)> {
        Some(match self {
            Scalar::I8 => (true, 8),
            Scalar::I16 => (true, 16),
            Scalar::I32 => (true, 32),
            Scalar::I64 => (true, 64),
            Scalar::I128 => (true, 128),
            Scalar::U8 => (false, 8),
            Scalar::U16 => (false, 16),
            Scalar::U32 => (false, 32),
            Scalar::U64 => (false, 64),
            Scalar::U128 => (false, 128),
            _ => return None,
        })
    }
}

/// Returns whether a field of Protocol Buffers of one type is read as the same value from another one, or as
/// an error of decoding.
#[cfg(feature = "prost")]
pub(super) fn fits(to: Scalar, from: Scalar) -> bool {
    use Scalar::{Bytes, Enum, I32, I64, Sint32, Sint64, Text};
    match (to, from) {
        // Values of enums are `int32`, also those that the reader has no name for.
        (I32 | I64, Enum) | (Enum, I32) => true,
        (Sint64, Sint32) | (Text, Bytes) | (Bytes, Text) => true,
        _ => to.integer().is_some() && is_wider(to, from),
    }
}
