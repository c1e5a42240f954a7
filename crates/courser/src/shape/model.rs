//! The parts of a shape.

/// The form of a value on the network: its fields, variants and integers, with their names.
///
/// Two programs compare the shapes of a method's types before they call it. Types of serde are traced
/// ([`Shape::of`]); other types have an opaque shape, which is a name only.
///
/// ```
/// use courser::service::Shape;
///
/// #[derive(serde::Deserialize)]
/// struct Row {
///     a: u32,
///     b: Option<String>,
/// }
/// let row = Shape::of::<Row>();
/// assert_eq!(row.to_string(), "Row { a: u32, b: Option<String> }");
/// # #[allow(dead_code)]
/// # mod later {
/// #[derive(serde::Deserialize)]
/// pub struct Row {
///     a: i32,
///     b: Option<String>,
/// }
/// # }
/// let later = Shape::of::<later::Row>();
/// let difference = later.reads(&row).unwrap_err();
/// assert_eq!(difference.to_string(), "Row.a: the reader has i32, the writer u32");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shape {
    pub(super) root: Form,
    /// Named types, in the order in which they are first referred to.
    pub(super) types: Vec<Named>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Scalar(Scalar),
    /// A type that is known by its name only.
    Opaque(Box<str>),
    Option(Box<Form>),
    Seq(Box<Form>),
    Map(Box<(Form, Form)>),
    Tuple(Runs),
    /// A type of [`Shape::types`].
    Named(usize),
}

/// The elements of a tuple: equal ones that follow each other are one run.
pub(super) type Runs = Vec<(u32, Form)>;

/// A type with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) name: Box<str>,
    pub(super) body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    Struct(Vec<Field>),
    Tuple(Runs),
    Enum(Vec<Variant>),
}

#[derive(Clone, Eq, Debug)]
pub(super) struct Field {
    /// Its name, and then its aliases.
    pub(super) names: Vec<Box<str>>,
    pub(super) form: Form,
    /// A value without the field is an error of decoding. False if it is not known.
    pub(super) is_required: bool,
}

/// A default of a reader does not change the form of values, so fields are equal with and without one.
impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names && self.form == other.form
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Variant {
    pub(super) name: Box<str>,
    pub(super) content: Content,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Unit,
    One(Form),
    Tuple(Runs),
    Struct(Vec<Field>),
}

macro_rules! scalars {
    ($($scalar:ident $name:literal,)*) => {
        /// A form without parts. Its place is its number on the network.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Scalar {
            $($scalar,)*
        }

        impl Scalar {
            pub(super) const ALL: &[Scalar] = &[$(Scalar::$scalar,)*];

            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Scalar::$scalar => $name,)*
                }
            }
        }
    };
}

scalars! {
    Unit "()",
    Bool "bool",
    I8 "i8",
    I16 "i16",
    I32 "i32",
    I64 "i64",
    I128 "i128",
    U8 "u8",
    U16 "u16",
    U32 "u32",
    U64 "u64",
    U128 "u128",
    F32 "f32",
    F64 "f64",
    Char "char",
    Text "String",
    Bytes "bytes",
    Never "never",
    // Types of Protocol Buffers.
    Sint32 "sint32",
    Sint64 "sint64",
    Fixed32 "fixed32",
    Fixed64 "fixed64",
    Sfixed32 "sfixed32",
    Sfixed64 "sfixed64",
    Enum "enum",
}

/// Adds equal elements to a tuple.
pub(super) fn push(runs: &mut Runs, number: u32, form: Form) {
    match runs.last_mut() {
        Some((count, last)) if *last == form && count.checked_add(number).is_some() => {
            *count += number;
        }
        _ => runs.push((number, form)),
    }
}

/// Changes the numbers of the named types in a tuple.
pub(super) fn renumber_runs(runs: &mut Runs, number: &mut impl FnMut(usize) -> usize) {
    for (count, mut form) in std::mem::take(runs) {
        form.renumber(number);
        push(runs, count, form);
    }
}

impl Form {
    /// Changes the numbers of the named types in it, in their order.
    pub(super) fn renumber(&mut self, number: &mut impl FnMut(usize) -> usize) {
        match self {
            Form::Scalar(_) | Form::Opaque(_) => {}
            Form::Option(inner) | Form::Seq(inner) => inner.renumber(number),
            Form::Map(entry) => {
                entry.0.renumber(number);
                entry.1.renumber(number);
            }
            Form::Tuple(runs) => renumber_runs(runs, number),
            Form::Named(named) => *named = number(*named),
        }
    }
}

impl Body {
    pub(super) fn renumber(&mut self, number: &mut impl FnMut(usize) -> usize) {
        let fields = |fields: &mut Vec<Field>, number: &mut _| {
            fields.iter_mut().for_each(|field| field.form.renumber(number));
        };
        match self {
            Body::Struct(all) => fields(all, number),
            Body::Tuple(runs) => renumber_runs(runs, number),
            Body::Enum(variants) => variants.iter_mut().for_each(|v| match &mut v.content {
                Content::Unit => {}
                Content::One(form) => form.renumber(number),
                Content::Tuple(runs) => renumber_runs(runs, number),
                Content::Struct(all) => fields(all, number),
            }),
        }
    }
}
