//! What the types of a method say about its kind.

use syn::spanned::Spanned;
use syn::{
    AngleBracketedGenericArguments, GenericArgument, PathArguments, ReturnType, Type,
    TypeImplTrait, TypeParamBound,
};

/// What a method returns: a value, or a value or an error.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) value: Type,
    /// `None`: the method has no application error.
    pub(crate) error: Option<Type>,
}

impl Outcome {
    /// Splits `Result<T, E>`; any other type is a value.
    pub(crate) fn of(whole: &Type) -> Self {
        match arguments(whole, "Result").as_deref() {
            Some([value, error]) => {
                Outcome { value: (*value).clone(), error: Some((*error).clone()) }
            }
            _ => Outcome { value: whole.clone(), error: None },
        }
    }

    /// Of the return type of an `async fn`.
    pub(crate) fn returned(returned: &ReturnType) -> Self {
        match returned {
            ReturnType::Default => Outcome { value: syn::parse_quote!(()), error: None },
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

/// Of `impl Stream<Item = T>`, the items. `Ok(None)`: it is no `impl Trait`.
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
