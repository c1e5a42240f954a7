//! The two traits that servers implement.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::Names;
use crate::kinds::Outcome;
use crate::model::{Kind, Method, Service};

pub(super) fn expand(service: &Service, names: &Names) -> TokenStream {
    let Service { ident, vis, attributes, methods, .. } = service;
    let local = &names.local;
    let sendable: Vec<_> = methods.iter().map(|m| signature(m, true)).collect();
    let unsendable: Vec<_> = methods.iter().map(|m| signature(m, false)).collect();
    let forwarded = methods.iter().zip(&unsendable).map(|(method, signature)| {
        let name = &method.ident;
        let (arguments, cfg) = (method.arguments.iter().map(|a| &a.ident), &method.cfg);
        quote! { #(#cfg)* #signature { <CourserImpl as #ident>::#name(self, #(#arguments),*) } }
    });
    let docs = methods.iter().map(|m| &m.attributes).collect::<Vec<_>>();
    let send_note = format!(
        "Implemented by servers whose handlers run on any thread, with `async fn` for each method. \
         [`{local}`] is the same for one thread."
    );
    let local_note = format!(
        "[`{ident}`] for servers whose handlers run on their endpoint's thread: neither the service \
         nor its futures are `Send`. Each [`{ident}`] is one too."
    );
    let allow = allow();
    quote! {
        #(#attributes)*
        #[doc = ""]
        #[doc = #send_note]
        #allow
        #vis trait #ident: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#(#docs)* #sendable;)*
        }

        #(#attributes)*
        #[doc = ""]
        #[doc = #local_note]
        #allow
        #vis trait #local: 'static {
            #(#(#docs)* #unsendable;)*
        }

        #allow
        #[allow(deprecated)]
        impl<CourserImpl: #ident> #local for CourserImpl {
            #(#forwarded)*
        }
    }
}

/// Lints of the signatures of the program, which are its own business, and of those of the library.
pub(super) fn allow() -> TokenStream {
    quote! {
        #[allow(
            dead_code, clippy::manual_async_fn, clippy::too_many_arguments, clippy::type_complexity,
            clippy::result_unit_err, clippy::double_must_use, clippy::wrong_self_convention,
            clippy::should_implement_trait, clippy::len_without_is_empty
        )]
    }
}

/// A method's signature, with futures and streams that are `Send` or not.
fn signature(method: &Method, sendable: bool) -> TokenStream {
    let name = &method.ident;
    let parameters = method.arguments.iter().map(|a| {
        let (name, ty) = (&a.ident, &a.ty);
        quote!(#name: #ty)
    });
    let send = sendable.then(|| quote!(+ ::core::marker::Send));
    let returned = match &method.kind {
        Kind::OneWay => quote!(impl ::core::future::Future<Output = ()> #send),
        Kind::ServerStream(stream) => {
            let bounds = &stream.1.bounds;
            quote!(impl #bounds #send)
        }
        Kind::BothStreams(streams) => {
            let bounds = &streams.1.bounds;
            quote!(impl #bounds #send)
        }
        Kind::Unary(out) => future(out, &send),
        Kind::ClientStream(stream) => future(&stream.0, &send),
    };
    let name = format_ident!("{name}");
    quote!(fn #name(&self, #(#parameters),*) -> #returned)
}

/// A future of an outcome.
fn future(out: &Outcome, send: &Option<TokenStream>) -> TokenStream {
    let output = &out.whole;
    quote!(impl ::core::future::Future<Output = #output> #send)
}
