//! The arguments of the attribute.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Ident, LitStr, Path, Token};

/// Arguments of `#[service]`.
pub(crate) struct Options {
    /// Path of the crate `courser`.
    pub(crate) krate: Path,
    pub(crate) codec: Path,
    /// The name on the network; `None`: that of the trait.
    pub(crate) name: Option<LitStr>,
    /// A constant with the messages of the methods, which `courser-build` writes.
    pub(crate) messages: Option<Path>,
}

const KNOWN: &str = "options are `codec = Path`, `name = \"Text\"` and `crate = path`";

/// Reads the arguments. `codec = Prost` with a bare name of a codec of the library needs no import.
pub(crate) fn read(tokens: TokenStream) -> syn::Result<Options> {
    let (mut krate, mut codec, mut name, mut messages) = (None, None, None, None);
    let parse = |input: ParseStream<'_>| -> syn::Result<()> {
        while !input.is_empty() {
            let key = input.call(Ident::parse_any)?;
            input.parse::<Token![=]>()?;
            match key.to_string().as_str() {
                "crate" => once(&mut krate, input.call(Path::parse_mod_style)?, &key)?,
                "codec" => once(&mut codec, input.parse::<Path>()?, &key)?,
                "name" => once(&mut name, input.parse::<LitStr>()?, &key)?,
                "messages" => once(&mut messages, input.parse::<Path>()?, &key)?,
                _ => return Err(syn::Error::new(key.span(), format!("unknown option; {KNOWN}"))),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(())
    };
    parse.parse2(tokens)?;
    if let Some(name) = &name
        && !(1..=100).contains(&name.value().len())
    {
        return Err(syn::Error::new(name.span(), "the name of a service has 1 to 100 bytes"));
    }
    let krate = krate.unwrap_or_else(|| syn::parse_quote!(::courser));
    let codec = match codec {
        None => syn::parse_quote!(#krate::service::Named),
        Some(path) => of_library(&path, &krate).unwrap_or(path),
    };
    Ok(Options { krate, codec, name, messages })
}

fn once<T: ToTokens>(slot: &mut Option<T>, value: T, key: &Ident) -> syn::Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(syn::Error::new(key.span(), format!("`{key}` is set twice; remove one"))),
    }
}

/// The full path of a codec of the library that is named without a path.
fn of_library(path: &Path, krate: &Path) -> Option<Path> {
    let name = path.get_ident()?;
    let known = ["Postcard", "Named", "Prost", "Rkyv", "Bytes"].iter().any(|known| name == known);
    known.then(|| {
        let name = Ident::new(&name.to_string(), name.span().resolved_at(Span::mixed_site()));
        syn::parse_quote!(#krate::service::#name)
    })
}
