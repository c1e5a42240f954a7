//! Shapes: the form of a value on the network, by which two programs compare their types.
//!
//! A shape is traced from a type, so that it does not depend on the type's source text. It consists of
//! a form and a table of named types, which the form and the types themselves refer to by number: so a
//! type may contain itself.

mod compare;
#[cfg(feature = "prost")]
pub(crate) mod messages;
pub(crate) mod method;
mod model;
mod name;
mod order;
mod parse;
mod required;
mod scalars;
mod text;
#[cfg(feature = "postcard")]
mod trace;
mod write;

#[cfg(all(test, feature = "postcard"))]
mod tests;

#[cfg(feature = "postcard")]
use serde::de::DeserializeOwned;

pub use self::compare::Difference;
pub use self::model::Shape;
use self::model::{Form, Runs, Scalar, push};

impl Shape {
    /// The shape of a type of serde. Takes microseconds to milliseconds: call it once for a type.
    ///
    /// The type's `Deserialize` is run with made-up values, several times for an enum, and once without each
    /// field. It must not have effects. The shape is that of serde's data model: a newtype is the type that
    /// it contains, a `usize` is a `u64`, a `Vec<u8>` is a byte string, and so is a field with `serde_bytes`.
    ///
    /// # Parts that are not known
    /// A type that decides its form by what it reads (`deserialize_any`: `serde(untagged)`,
    /// `serde(tag)`, `flatten`, `serde_json::Value`) is opaque, with the last segment of its name.
    /// Types that refuse values, such as `NonZeroU32` or a URL in a text, are traced with several
    /// values. If all are refused, the form is that of the type that was read. The parts of tuples that
    /// follow are unknown: they have the name of the type that they are a part of, as `? of (Url, u32)`,
    /// and are the same as unknown parts of types with this name only. A panic of the type's `Deserialize` has the same effect (with
    /// `panic = "abort"` it ends the program). An alias of a field is a part of the field; an alias of
    /// a variant is a variant of its own.
    ///
    /// # Required fields
    /// Values without one of the fields are tried too. A field is required if the type's error names it as
    /// missing, as derived code does for those without `serde(default)` that are no `Option`. This is no
    /// part of the form: it has no effect on equality, on [`Shape::to_bytes`] or on the fingerprint. It is
    /// not known for fields of opaque types and of types with an error in words of their own, and for
    /// those behind a required one that refuses all values.
    ///
    /// # Limits
    /// A type is opaque, with its whole name, if not all of it is found within these limits: 8,192 parts,
    /// 200,000 parts of one value, a million parts in all values, 50,000 values. So its fields are not
    /// compared. A type whose shape is longer than 64 KiB on the network is opaque, with a hash of it as a part of its name: it is the
    /// same as itself only. Values that contain each other by more than 64 levels end there. A type that needs
    /// more than 512 KiB of stack is traced on a thread of its own, with 72 MiB.
    #[cfg(feature = "postcard")]
    pub fn of<T: DeserializeOwned>() -> Self {
        trace::trace::<T>().limited(&name::short(std::any::type_name::<T>()))
    }

    /// A type that is known by its name only. It is the same as a type of the same name. Names of more
    /// than 200 characters are cut, and end in a hash of the whole name.
    pub fn opaque(name: &str) -> Self {
        Shape { root: Form::Opaque(name::limited(name).into()), types: Vec::new() }
    }

    /// A type that is known by the last segment of its name only: `Vec<Row>` for
    /// `alloc::vec::Vec<store::Row>`.
    pub fn named<T: ?Sized>() -> Self {
        Shape::opaque(&name::short(std::any::type_name::<T>()))
    }

    /// A type without values: the error of methods without one.
    pub fn never() -> Self {
        Shape { root: Form::Scalar(Scalar::Never), types: Vec::new() }
    }

    /// The shape of a message of prost: a name, or one of the types that prost has messages for.
    #[cfg(feature = "prost")]
    pub(crate) fn of_message<T>() -> Self {
        let name = std::any::type_name::<T>();
        let scalar = match name {
            "()" => Scalar::Unit,
            "alloc::string::String" => Scalar::Text,
            "alloc::vec::Vec<u8>" | "bytes::bytes::Bytes" => Scalar::Bytes,
            // Numbers have the names that a shape has for them.
            _ => match Scalar::ALL.iter().find(|scalar| scalar.name() == name) {
                Some(scalar) => *scalar,
                None => return Shape::named::<T>(),
            },
        };
        Shape { root: Form::Scalar(scalar), types: Vec::new() }
    }

    /// The shape of a tuple: the parameters of a method. It is that of a Rust tuple.
    pub fn tuple(parts: impl IntoIterator<Item = Shape>) -> Self {
        let (mut runs, mut types) = (Runs::new(), Vec::new());
        for part in parts {
            let first = types.len();
            let mut named = part.types;
            let mut root = part.root;
            root.renumber(&mut |number| number + first);
            named.iter_mut().for_each(|named| named.body.renumber(&mut |number| number + first));
            types.append(&mut named);
            push(&mut runs, 1, root);
        }
        let root = match &runs[..] {
            [] => Form::Scalar(Scalar::Unit),
            _ => Form::Tuple(runs),
        };
        Shape { root, types }.merged().limited("tuple")
    }

    /// A hash of the shape, without the names of types. It is the same with every compiler and on every
    /// machine. Shapes with one hash are the same ([`Shape::same`]); types that are the same may have
    /// two if one of them is divided into types in another way.
    pub fn fingerprint(&self) -> u64 {
        fnv(FNV_BASIS, &self.encode(false))
    }

    /// The shape, or an opaque one if the other end would not read it.
    fn limited(self, name: &str) -> Self {
        let bytes = self.encode(true);
        match Self::from_bytes(&bytes) {
            Ok(_) => self,
            Err(_) => Shape::opaque(&format!("{name}#{:016x}", fnv(FNV_BASIS, &bytes))),
        }
    }
}

pub(crate) const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues a hash (FNV-1a).
pub(crate) fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
