//! Markers of MessagePack: the first byte of a value.

pub(super) const FIX_MAP: u8 = 0x80;
pub(super) const FIX_ARRAY: u8 = 0x90;
pub(super) const FIX_TEXT: u8 = 0xa0;
pub(super) const NIL: u8 = 0xc0;
/// An option whose value begins with [`NIL`].
pub(super) const SOME: u8 = 0xc1;
pub(super) const FALSE: u8 = 0xc2;
pub(super) const TRUE: u8 = 0xc3;
pub(super) const BYTES_8: u8 = 0xc4;
pub(super) const BYTES_16: u8 = 0xc5;
pub(super) const BYTES_32: u8 = 0xc6;
pub(super) const F32: u8 = 0xca;
pub(super) const F64: u8 = 0xcb;
pub(super) const U8: u8 = 0xcc;
pub(super) const U16: u8 = 0xcd;
pub(super) const U32: u8 = 0xce;
pub(super) const U64: u8 = 0xcf;
pub(super) const I8: u8 = 0xd0;
pub(super) const I16: u8 = 0xd1;
pub(super) const I32: u8 = 0xd2;
pub(super) const I64: u8 = 0xd3;
pub(super) const TEXT_8: u8 = 0xd9;
pub(super) const TEXT_16: u8 = 0xda;
pub(super) const TEXT_32: u8 = 0xdb;
pub(super) const ARRAY_16: u8 = 0xdc;
pub(super) const ARRAY_32: u8 = 0xdd;
pub(super) const MAP_16: u8 = 0xde;
pub(super) const MAP_32: u8 = 0xdf;
/// The first of the integers from -32 to -1.
pub(super) const NEGATIVE: u8 = 0xe0;
