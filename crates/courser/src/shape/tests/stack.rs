//! Types that need more stack than a thread may have.

use super::*;
use crate::shape::trace::{MAX_STACK, trace_within};

/// A number that takes 32 KiB.
#[allow(dead_code)]
struct Pad([u8; 32 << 10]);

impl<'de> Deserialize<'de> for Pad {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u8::deserialize(from).map(|n| Pad([n; 32 << 10]))
    }
}

types! {
    struct Wide<T> { pad: Pad, inner: Box<T>, #[serde(default)] last: u8 }
}

type Five<T> = Wide<Wide<Wide<Wide<Wide<T>>>>>;
type Twenty<T> = Five<Five<Five<Five<T>>>>;

#[test]
fn types_that_need_more_stack_are_traced_with_more() {
    let (shape, is_out_of_stack) = trace_within::<Twenty<u16>>(MAX_STACK);
    assert!(is_out_of_stack && format!("{shape:?}").contains("? of"), "{shape}");
    let shape = Shape::of::<Twenty<u16>>();
    assert!(!format!("{shape:?}").contains("? of"), "{shape}");
    let other = Shape::of::<Twenty<u32>>();
    assert!(shape.same(&other).is_err() && other.reads(&shape).is_ok());
    assert!(shape.required().iter().all(|bits| *bits != 0));
}
