//! The types that a service sends: a type that its codec does not send is reported once.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Type};

use super::Names;
use crate::kinds::{Outcome, Parts};
use crate::model::{Kind, Method, Role, Service};

/// The codecs of the library, whose errors say what to derive.
const KNOWN: [&str; 5] = ["Postcard", "Named", "Prost", "Rkyv", "Bytes"];

/// A type that is sent, as both ends have it.
struct Wire<'s> {
    sent: TokenStream,
    received: TokenStream,
    /// The first and the last token of the type in the trait.
    ends: (Span, Span),
    /// Constants. If one is true, other types have the error.
    unless: Vec<TokenStream>,
    cfg: &'s [Attribute],
}

/// The codec that the generated code uses, and an assertion for each type.
pub(super) fn expand(service: &Service, names: &Names) -> TokenStream {
    let Names { krate, codec, chosen, .. } = names;
    let mut wires = Vec::new();
    for method in &service.methods {
        arguments(method, names, &mut wires);
        outcomes(method, names, &mut wires);
    }
    let mut seen = BTreeSet::new();
    wires.retain(|wire| {
        let Wire { sent, received, unless, cfg, .. } = wire;
        seen.insert(quote!(#sent, #received, #(#unless),* #(#cfg)*).to_string())
    });
    let constants = wires.iter().map(|wire| {
        let (cfg, is_sent) = (wire.cfg, names.is_sent(&wire.sent, &wire.received));
        quote!(#(#cfg)* { all = all && #is_sent; })
    });
    let assertions = wires.iter().map(|wire| assertion(wire, names));
    quote! {
        #[doc(hidden)]
        #[allow(dead_code)]
        type #chosen = <#codec as #krate::service::Choose<{
            #[allow(unused_mut)]
            let mut all = true;
            #(#constants)*
            all
        }>>::Codec;

        const _: () = { #(#assertions)* };
    }
}

impl Names {
    /// A constant expression: whether the codec sends a type.
    fn is_sent(&self, sent: &TokenStream, received: &TokenStream) -> TokenStream {
        let Names { krate, codec, .. } = self;
        quote! {{
            use #krate::service::AnySent as _;
            #krate::service::Sends::<#codec, #sent, #received>::IS_SENT
        }}
    }
}

/// The parameters. A lone one is sent as it is, several are sent as a tuple.
fn arguments<'s>(method: &'s Method, names: &Names, wires: &mut Vec<Wire<'s>>) {
    let cfg = &method.cfg[..];
    let all: Vec<_> = method.sent().collect();
    if let [one] = all[..] {
        match &one.role {
            Role::View(of) => wires.push(Wire::of(of, &one.ty, cfg)),
            _ => wires.push(Wire::of(&one.ty, &one.ty, cfg)),
        }
    }
    if let [first, .., last] = all[..] {
        let sent = all.iter().map(|a| match &a.role {
            Role::View(of) => quote!(&'static #of),
            _ => a.ty.to_token_stream(),
        });
        let received = all.iter().map(|a| &a.ty);
        let sent = names.several_types(quote!((#(#sent),*)));
        let received = names.several_types(quote!((#(#received),*)));
        // The tuple is what counts. If it is not sent, the error is that of a parameter that is not,
        // or if there is none, that of the tuple.
        let is_sent = names.is_sent(&sent, &received);
        let mut parts = Vec::new();
        for argument in &all {
            let mut part = Wire::of(&argument.ty, &argument.ty, cfg);
            parts.push(names.is_sent(&part.sent, &part.received));
            part.unless = vec![is_sent.clone()];
            wires.push(part);
        }
        let ends = (ends(&first.ty).0, ends(&last.ty).1);
        let unless = vec![quote!(!(#(#parts)&&*))];
        wires.push(Wire { sent, received, ends, unless, cfg });
    }
    for argument in &method.arguments {
        if let Role::Incoming(item) = &argument.role {
            wires.push(Wire::of(item, item, cfg));
        }
    }
}

/// The value and the error, or those of the items.
fn outcomes<'s>(method: &'s Method, names: &Names, wires: &mut Vec<Wire<'s>>) {
    let cfg = &method.cfg[..];
    let out = match &method.kind {
        Kind::OneWay => return,
        Kind::Unary(out) => &**out,
        Kind::ServerStream(stream) => &stream.0,
        Kind::ClientStream(stream) => &stream.0,
        Kind::BothStreams(streams) => &streams.0,
    };
    match &out.parts {
        Parts::Both(value, error) => {
            wires.push(Wire::of(value, value, cfg));
            wires.push(Wire::of(error, error, cfg));
        }
        Parts::Value => wires.push(Wire::of(&out.whole, &out.whole, cfg)),
        Parts::Named => {
            wires.push(Wire::part(out, "Value", names, cfg));
            wires.push(Wire::part(out, "Error", names, cfg));
        }
    }
}

impl<'s> Wire<'s> {
    fn of(sent: &Type, received: &Type, cfg: &'s [Attribute]) -> Self {
        let ends = ends(sent);
        let (sent, received) = (sent.to_token_stream(), received.to_token_stream());
        Wire { sent, received, ends, unless: Vec::new(), cfg }
    }

    /// The value or the error of an outcome that may be an alias.
    fn part(out: &Outcome, part: &str, names: &Names, cfg: &'s [Attribute]) -> Self {
        let (ends, split) = (ends(&out.whole), names.split(&out.whole));
        let part = projection(ends, &split, part);
        Wire { sent: part.clone(), received: part, ends, unless: Vec::new(), cfg }
    }
}

/// `<of>::name`, whose ends are those of the type in the trait.
fn projection(ends: (Span, Span), of: &TokenStream, name: &str) -> TokenStream {
    let open = quote_spanned!(ends.0=> <);
    let name = Ident::new(name, ends.1);
    quote!(#open #of>::#name)
}

/// The assertion of a type, which has the place of the type.
fn assertion(wire: &Wire<'_>, names: &Names) -> TokenStream {
    let Names { krate, codec, .. } = names;
    let Wire { sent, received, ends, unless, cfg } = wire;
    let last = codec.segments.last().map(|segment| segment.ident.to_string());
    let function = match last.filter(|last| KNOWN.contains(&last.as_str())) {
        Some(known) => format_ident!("sent_by_{}", known.to_lowercase()),
        None => format_ident!("sent"),
    };
    let checked = |of: &TokenStream| {
        unless.iter().fold(of.clone(), |of, constant| {
            let of = quote!(#of as #krate::service::Unless<{ #constant }>);
            projection(*ends, &of, "Type")
        })
    };
    let (sent, received) = (checked(sent), checked(received));
    quote! {
        #(#cfg)*
        let _ = #krate::service::#function::<#sent, #codec, #received>;
    }
}

/// The first and the last token.
fn ends(of: &Type) -> (Span, Span) {
    let spans = of.to_token_stream().into_iter().map(|token| token.span());
    let spans: Vec<_> = spans.collect();
    match &spans[..] {
        [] => (Span::call_site(), Span::call_site()),
        [first, ..] => (*first, *spans.last().unwrap_or(first)),
    }
}
