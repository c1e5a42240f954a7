//! The kind of a method, from its types.

use syn::spanned::Spanned;
use syn::{
    AngleBracketedGenericArguments, GenericArgument, PathArguments, ReturnType, Type,
    TypeImplTrait, TypeParamBound,
};

/// Type that a method returns, or of an item of a stream.
#[derive(Clone)]
pub(crate) struct Outcome {
    /// The type in the trait.
    pub(crate) whole: Type,
    pub(crate) parts: Parts,
}

/// The value and the application error of an outcome.
#[derive(Clone)]
pub(crate) enum Parts {
    /// `Result<T, E>`.
    Both(Box<Type>, Box<Type>),
    /// It is no `Result`.
    Value,
    /// A name, which may be an alias of a `Result`: the compiler decides when it knows the type.
    Named,
}

/// Types that are no aliases. A name of the program may hide one of them, and is then taken for it,
/// so there are none that programs use for results.
const PLAIN: [&str; 17] = [
    "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
    "isize", "f32", "f64", "String",
];

impl Outcome {
    pub(crate) fn of(whole: &Type) -> Self {
        let parts = match (arguments(whole, "Result").as_deref(), whole) {
            (Some([value, error]), _) => {
                Parts::Both(Box::new((*value).clone()), Box::new((*error).clone()))
            }
            (_, Type::Path(path)) => match path.path.get_ident() {
                Some(name) if PLAIN.iter().any(|plain| name == plain) => Parts::Value,
                _ => Parts::Named,
            },
            (_, Type::Macro(_) | Type::Paren(_) | Type::Group(_)) => Parts::Named,
            _ => Parts::Value,
        };
        Outcome { whole: whole.clone(), parts }
    }

    /// The outcome of an `async fn` with this return type.
    pub(crate) fn returned(returned: &ReturnType) -> Self {
        match returned {
            ReturnType::Default => Outcome { whole: syn::parse_quote!(()), parts: Parts::Value },
            ReturnType::Type(_, whole) => Outcome::of(whole),
        }
    }
}

/// The types in angle brackets, when the last segment of the path is `name`.
fn arguments<'t>(of: &'t Type, name: &str) -> Option<Vec<&'t Type>> {
    let Type::Path(path) = of else { return None };
    let last = path.path.segments.last()?;
    if last.ident != name {
        return None;
    }
    let PathArguments::AngleBracketed(brackets) = &last.arguments else { return None };
    let types = brackets.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    });
    Some(types.collect())
}

/// The `T` of `name<T>`.
pub(crate) fn argument<'t>(of: &'t Type, name: &str) -> Option<&'t Type> {
    match arguments(of, name)?[..] {
        [one] => Some(one),
        _ => None,
    }
}

/// Returns whether a type is `CallContext`, the parameter that the server makes.
pub(crate) fn is_context(of: &Type) -> bool {
    let Type::Path(path) = of else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|last| last.ident == "CallContext" && last.arguments.is_empty())
}

/// The items of a returned `impl Stream<Item = T>`. `Ok(None)`: it is no `impl Trait`.
pub(crate) fn stream(returned: &ReturnType) -> syn::Result<Option<(&TypeImplTrait, Outcome)>> {
    let ReturnType::Type(_, returned) = returned else { return Ok(None) };
    let Type::ImplTrait(whole) = &**returned else { return Ok(None) };
    let streams = whole.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(t) => t.path.segments.last().filter(|s| s.ident == "Stream"),
        _ => None,
    });
    let item = streams.and_then(|segment| match &segment.arguments {
        PathArguments::AngleBracketed(brackets) => item_of(brackets),
        _ => None,
    });
    match item {
        Some(item) => Ok(Some((whole, Outcome::of(item)))),
        None => Err(syn::Error::new(
            whole.span(),
            "a method returns `impl Stream<Item = Result<T, E>>`, or is an `async fn`",
        )),
    }
}

fn item_of(brackets: &AngleBracketedGenericArguments) -> Option<&Type> {
    brackets.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(item) if item.ident == "Item" => Some(&item.ty),
        _ => None,
    })
}
