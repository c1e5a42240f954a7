//! Shapes of messages of Protocol Buffers, from the descriptors of their `.proto` files. `courser-build`
//! writes constants of these types beside the services that it generates.

use super::Shape;
use super::method::{MethodKind, MethodShape};
use super::model::{Body, Field, Form, Named, Scalar};
use super::name;

/// The type of a field, or the message that a method takes or returns.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Wire {
    /// `google.protobuf.Empty`, as a message of a method.
    Empty,
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Float,
    Double,
    String,
    Bytes,
    Enum,
    /// A type of [`Messages::types`].
    Message(usize),
    Group(usize),
    List(&'static Wire),
    Map(&'static Wire, &'static Wire),
}

/// A field: its name, its number, the name of its oneof, and its type.
#[doc(hidden)]
pub type MessageField = (&'static str, u32, Option<&'static str>, Wire);

/// The messages of the methods of a service.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Messages and groups, with their full names.
    pub types: &'static [(&'static str, &'static [MessageField])],
    /// The methods, with the messages that they take and return.
    pub methods: &'static [(&'static str, Wire, Wire)],
}

impl Messages {
    /// The shape of a method, with those of its messages.
    pub fn describe(&self, method: &str, shape: MethodShape) -> MethodShape {
        let Some((_, takes, returns)) = self.methods.iter().find(|(name, ..)| *name == method)
        else {
            return shape;
        };
        let takes = self.shape(takes);
        let (arguments, sent) = match shape.kind() {
            MethodKind::ClientStream | MethodKind::BothStreams => {
                (shape.arguments().clone(), takes)
            }
            _ => (takes, shape.sent().clone()),
        };
        let value = match shape.kind() {
            MethodKind::OneWay => shape.value().clone(),
            _ => self.shape(returns),
        };
        MethodShape::new(shape.kind(), [arguments, sent, value, shape.error().clone()])
    }

    fn shape(&self, root: &Wire) -> Shape {
        let field = |(field, number, oneof, wire): &MessageField| {
            let named = format!("{} = {number}", name::limited(field)).into();
            let oneof = oneof.map(|oneof| name::limited(oneof).into());
            let names = [named].into_iter().chain(oneof).collect();
            Field { names, form: form(wire), is_required: false }
        };
        let named = self.types.iter().map(|(message, fields)| Named {
            name: name::limited(message).into(),
            body: Body::Struct(fields.iter().map(field).collect()),
        });
        let (root, types) = (form(root), named.collect());
        // Without the types that it does not have.
        Shape { root, types }.ordered().merged().limited("message")
    }
}

fn form(wire: &Wire) -> Form {
    Form::Scalar(match wire {
        Wire::Empty => Scalar::Unit,
        Wire::Bool => Scalar::Bool,
        Wire::Int32 => Scalar::I32,
        Wire::Int64 => Scalar::I64,
        Wire::Uint32 => Scalar::U32,
        Wire::Uint64 => Scalar::U64,
        Wire::Sint32 => Scalar::Sint32,
        Wire::Sint64 => Scalar::Sint64,
        Wire::Fixed32 => Scalar::Fixed32,
        Wire::Fixed64 => Scalar::Fixed64,
        Wire::Sfixed32 => Scalar::Sfixed32,
        Wire::Sfixed64 => Scalar::Sfixed64,
        Wire::Float => Scalar::F32,
        Wire::Double => Scalar::F64,
        Wire::String => Scalar::Text,
        Wire::Bytes => Scalar::Bytes,
        Wire::Enum => Scalar::Enum,
        Wire::Message(number) => return Form::Named(*number),
        Wire::Group(number) => return Form::Tuple(vec![(1, Form::Named(*number))]),
        Wire::List(of) => return Form::Seq(Box::new(form(of))),
        Wire::Map(key, value) => return Form::Map(Box::new((form(key), form(value)))),
    })
}
