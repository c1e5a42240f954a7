//! Several arguments of a method: the fields of a message without a name.

use prost::bytes::{Buf, BufMut};
use prost::encoding::wire_type::WireType;
use prost::encoding::{DecodeContext, message, skip_field};
use prost::{DecodeError, Message};

/// A tuple of arguments as a message: its parts are the fields 1, 2 and so on, each of which is a message.
/// A part with an empty encoding is left out, and one that is absent has its default. So old and new
/// programs understand each other if arguments are added at the end.
///
/// A field that comes twice is merged with the first one, and fields with other numbers are skipped, as in
/// all messages.
#[doc(hidden)]
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Fields<T>(pub T);

fn encode(number: u32, part: &impl Message, out: &mut impl BufMut) {
    if part.encoded_len() > 0 {
        message::encode(number, part, out);
    }
}

fn encoded_len(number: u32, part: &impl Message) -> usize {
    match part.encoded_len() {
        0 => 0,
        _ => message::encoded_len(number, part),
    }
}

macro_rules! fields {
    ($($part:ident $at:tt $number:literal),*) => {
        impl<$($part: Message),*> Message for Fields<($($part,)*)> {
            fn encode_raw(&self, out: &mut impl BufMut) {
                $(encode($number, &self.0.$at, out);)*
            }

            fn merge_field(
                &mut self,
                number: u32,
                kind: WireType,
                from: &mut impl Buf,
                context: DecodeContext,
            ) -> Result<(), DecodeError> {
                match number {
                    $($number => {
                        message::merge(kind, &mut self.0.$at, from, context).map_err(|mut e| {
                            e.push("parameters", stringify!($number));
                            e
                        })
                    })*
                    _ => skip_field(kind, number, from, context),
                }
            }

            fn encoded_len(&self) -> usize {
                0 $(+ encoded_len($number, &self.0.$at))*
            }

            fn clear(&mut self) {
                $(self.0.$at.clear();)*
            }
        }
    };
}

/// Implements the trait for a list of parts, and for that list with each of the others added.
macro_rules! all_fields {
    ([$($part:ident $at:tt $number:literal),*]) => {
        fields!($($part $at $number),*);
    };
    (
        [$($part:ident $at:tt $number:literal),*]
        $next:ident $next_at:tt $next_number:literal $($rest:tt)*
    ) => {
        fields!($($part $at $number),*);
        all_fields!([$($part $at $number,)* $next $next_at $next_number] $($rest)*);
    };
}

// Longer tuples have no `Default`, which parts that are absent need.
all_fields!([A 0 1, B 1 2] C 2 3 D 3 4 E 4 5 F 5 6 G 6 7 H 7 8 I 8 9 J 9 10 K 10 11 L 11 12);
