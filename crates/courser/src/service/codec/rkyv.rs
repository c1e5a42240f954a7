//! rkyv.
