//! The generated code.

mod client;
mod sent;
mod server;
mod traits;

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{Ident, Path, Type};

use crate::kinds::{self, Outcome, Parts};
use crate::model::{Argument, Method, Role, Service};

/// All items that the attribute generates.
pub(crate) fn service(service: &Service) -> TokenStream {
    let names = Names::new(service);
    let traits = traits::expand(service, &names);
    let client = client::expand(service, &names);
    let server = server::expand(service, &names);
    let sent = sent::expand(service, &names);
    quote! { #traits #client #server #sent }
}

/// Names that the generated items use.
struct Names {
    krate: Path,
    codec: Path,
    /// The codec, as the generated code uses it: see `sent.rs`.
    chosen: Ident,
    local: Ident,
    client: Ident,
    server: Ident,
}

impl Names {
    fn new(service: &Service) -> Self {
        let ident = &service.ident;
        Names {
            krate: service.options.krate.clone(),
            codec: service.options.codec.clone(),
            chosen: format_ident!("CodecOf{ident}"),
            local: format_ident!("Local{ident}"),
            client: format_ident!("{ident}Client"),
            server: format_ident!("{ident}Server"),
        }
    }

    /// The place of a method in the table of its service, which `#[cfg]` may shorten.
    fn index(&self, method: &Method) -> TokenStream {
        let (client, name) = (&self.client, method.name());
        quote!(const { #client::SERVICE.index(#name) })
    }

    /// The types of the value and of the application error.
    fn parts(&self, out: &Outcome) -> (TokenStream, TokenStream) {
        let (krate, whole) = (&self.krate, &out.whole);
        match &out.parts {
            Parts::Both(value, error) => (quote!(#value), quote!(#error)),
            Parts::Value => (quote!(#whole), quote!(#krate::service::NoError)),
            Parts::Named => {
                let split = self.split(whole);
                (quote!(<#split>::Value), quote!(<#split>::Error))
            }
        }
    }

    /// The trait that splits a type, chosen by whether it is a `Result`.
    fn split(&self, whole: &Type) -> TokenStream {
        let krate = &self.krate;
        quote!(#whole as #krate::service::Split<{
            use #krate::service::AnyType as _;
            #krate::service::Probe::<#whole>::IS_RESULT
        }>)
    }

    /// The type of several arguments: a tuple, whose parts are the fields of a message with `Prost`.
    fn several_types(&self, tuple: TokenStream) -> TokenStream {
        let krate = &self.krate;
        if self.are_fields() { quote!(#krate::service::Fields<#tuple>) } else { tuple }
    }

    /// The value, or the pattern, of [`Names::several_types`].
    fn several(&self, tuple: TokenStream) -> TokenStream {
        let krate = &self.krate;
        if self.are_fields() { quote!(#krate::service::Fields(#tuple)) } else { tuple }
    }

    fn are_fields(&self) -> bool {
        let krate = &self.krate;
        let prost: Path = syn::parse_quote!(#krate::service::Prost);
        self.codec == prost
    }

    /// A method's result as a `Result`.
    fn outcome(&self, out: &Outcome, value: TokenStream) -> TokenStream {
        match &out.parts {
            Parts::Both(..) => value,
            Parts::Value => quote!(::core::result::Result::Ok(#value)),
            Parts::Named => {
                let split = self.split(&out.whole);
                quote!(<#split>::split(#value))
            }
        }
    }
}

/// Returns whether the server reads an argument as a byte string, which has the encoding of its
/// type. A lone argument is recognized by the codec.
fn is_byte_string(argument: &Argument, method: &Method, names: &Names) -> bool {
    let Names { krate, codec, .. } = names;
    let named: Path = syn::parse_quote!(#krate::service::Named);
    let postcard: Path = syn::parse_quote!(#krate::service::Postcard);
    let byte: Type = syn::parse_quote!(u8);
    (*codec == named || *codec == postcard)
        && method.sent().count() > 1
        && kinds::argument(&argument.ty, "Vec") == Some(&byte)
}

/// The type of the arguments as the server reads them: none, one, or a tuple.
fn arguments_type(method: &Method, names: &Names) -> TokenStream {
    let types = arguments_types(method, names);
    match &types[..] {
        [one] => quote!(#one),
        [] => quote!(()),
        _ => names.several_types(quote!((#(#types),*))),
    }
}

/// The types of the arguments as the server reads them.
fn arguments_types(method: &Method, names: &Names) -> Vec<TokenStream> {
    let krate = &names.krate;
    let types = method.sent().map(|a| match is_byte_string(a, method, names) {
        true => quote!(#krate::service::ByteString),
        false => a.ty.to_token_stream(),
    });
    types.collect()
}

/// The pattern that goes with [`arguments_type`].
fn arguments_pattern(method: &Method, names: &Names) -> TokenStream {
    let krate = &names.krate;
    let patterns: Vec<_> = (method.sent())
        .map(|a| {
            let name = &a.ident;
            match is_byte_string(a, method, names) {
                true => quote!(#krate::service::ByteString(#name)),
                false => quote!(#name),
            }
        })
        .collect();
    match &patterns[..] {
        [one] => quote!(#one),
        [] => quote!(()),
        _ => names.several(quote!((#(#patterns),*))),
    }
}

/// A reference to the arguments, as the client encodes them.
fn arguments_sent(method: &Method, names: &Names) -> TokenStream {
    let mut sent = method.sent();
    if let (Some(one), None) = (sent.next(), sent.next())
        && matches!(one.role, Role::View(_))
    {
        let name = &one.ident;
        return quote!(#name);
    }
    let idents: Vec<_> = method.sent().map(|a| &a.ident).collect();
    match idents[..] {
        [one] => quote!(&#one),
        [] => quote!(&()),
        _ => {
            let several = names.several(quote!((#(#idents),*)));
            quote!(&#several)
        }
    }
}
