//! The server, and the registration of its handlers.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Ident;

use super::{Names, arguments_pattern, arguments_type};
use crate::kinds::{Outcome, Parts};
use crate::model::{Kind, Method, Service};

pub(super) fn expand(service: &Service, names: &Names) -> TokenStream {
    let Names { krate, local, client, server, .. } = names;
    let Service { ident, vis, methods, .. } = service;
    let handlers =
        |of: &Ident| -> Vec<_> { methods.iter().map(|m| handler(m, of, names)).collect() };
    let (sendable, unsendable) = (handlers(ident), handlers(local));
    let note = format!(
        "Serves a [`{ident}`], or on an endpoint's own thread a [`{local}`]. `CourserPtr` is the pointer that \
         its handlers share."
    );
    quote! {
        #[doc = #note]
        #[derive(Clone, Debug)]
        #[allow(dead_code)]
        #vis struct #server<CourserPtr> {
            service: CourserPtr,
        }

        #[allow(dead_code)]
        impl<S> #server<::std::sync::Arc<S>> {
            /// Serves on any thread.
            #vis fn new(service: S) -> Self {
                Self { service: ::std::sync::Arc::new(service) }
            }
        }

        #[allow(dead_code)]
        impl<S> #server<::std::rc::Rc<S>> {
            /// Serves on the thread of one endpoint.
            #vis fn local(service: S) -> Self {
                Self { service: ::std::rc::Rc::new(service) }
            }
        }

        #[allow(dead_code)]
        impl<CourserPtr> #server<CourserPtr> {
            /// Serves what the program also uses itself: an `Arc`, or on one thread an `Rc`.
            #vis fn shared(service: CourserPtr) -> Self {
                Self { service }
            }
        }

        impl<CourserPtr> #krate::service::Service for #server<CourserPtr>
        where
            CourserPtr: ::core::ops::Deref + ::core::clone::Clone,
            CourserPtr: ::core::marker::Send + ::core::marker::Sync + 'static,
            <CourserPtr as ::core::ops::Deref>::Target: #ident,
        {
            #[allow(deprecated, unused_variables)]
            fn register<CourserReg: #krate::service::Registry>(
                self,
                registry: &mut CourserReg,
            ) -> ::core::result::Result<(), #krate::service::RegisterError> {
                let (__services, __first) = #krate::service::begin(registry, &#client::SERVICE)?;
                #(#sendable)*
                ::core::result::Result::Ok(())
            }
        }

        impl<CourserPtr> #krate::service::LocalService for #server<CourserPtr>
        where
            CourserPtr: ::core::ops::Deref + ::core::clone::Clone + 'static,
            <CourserPtr as ::core::ops::Deref>::Target: #local,
        {
            #[allow(deprecated, unused_variables)]
            fn register_local<CourserReg: #krate::service::LocalRegistry>(
                self,
                registry: &mut CourserReg,
            ) -> ::core::result::Result<(), #krate::service::RegisterError> {
                let (__services, __first) = #krate::service::begin_local(registry, &#client::SERVICE)?;
                #(#unsendable)*
                ::core::result::Result::Ok(())
            }
        }
    }
}

/// Registers the handler of a method of the trait `of`.
fn handler(method: &Method, of: &Ident, names: &Names) -> TokenStream {
    let Names { krate, chosen, .. } = names;
    let (ident, index) = (&method.ident, names.index(method));
    let (types, tuple) = (arguments_type(method, names), arguments_pattern(method, names));
    let passed = method.arguments.iter().map(|a| &a.ident);
    let run = quote!(<<CourserPtr as ::core::ops::Deref>::Target as #of>::#ident(&__service, #(#passed),*));
    let (ok, err) = (quote!(::core::result::Result::Ok), quote!(::core::result::Result::Err));
    let (register, opened, answer) = match &method.kind {
        Kind::Unary(out) => {
            let (ty, outcome) = (answer_type(names, out), names.outcome(out, quote!(#run.await)));
            let answer = quote! {
                match __opened {
                    #ok(#tuple) => #ty::new(#outcome),
                    #err(refusal) => #ty::refused(refusal),
                }
            };
            (
                quote!(on_request),
                quote!(__services.arguments::<#chosen, #types>(__received)),
                answer,
            )
        }
        Kind::OneWay => {
            let answer = quote! { if let #ok(#tuple) = __opened { #run.await } };
            (
                quote!(on_message),
                quote!(__services.arguments::<#chosen, #types>(__received)),
                answer,
            )
        }
        Kind::ServerStream(stream) => (
            quote!(on_request),
            quote!(__services.open_outgoing::<#chosen, #types>(__received)),
            outgoing(names, &stream.0, quote!(#tuple, __outgoing), run),
        ),
        Kind::ClientStream(stream) => {
            let (out, item) = &**stream;
            let incoming = method.incoming();
            let (ty, outcome) = (answer_type(names, out), names.outcome(out, quote!(outcome)));
            let answer = quote! {
                match __opened {
                    #ok((#tuple, #incoming, __open)) => match __open.run(#run).await {
                        #ok(outcome) => #ty::new(#outcome),
                        #err(refusal) => #ty::refused(refusal),
                    },
                    #err(refusal) => #ty::refused(refusal),
                }
            };
            let opened = quote!(__services.open_incoming::<#chosen, #types, #item>(__received));
            (quote!(on_request), opened, answer)
        }
        Kind::BothStreams(streams) => {
            let (out, _, item) = &**streams;
            let incoming = method.incoming();
            (
                quote!(on_request),
                quote!(__services.open_both::<#chosen, #types, #item>(__received)),
                outgoing(names, out, quote!(#tuple, #incoming, __outgoing), run),
            )
        }
    };
    let cfg = &method.cfg;
    let Some(context) = method.context() else {
        return quote! {
            #(#cfg)*
            registry.#register(__first + #index, {
                let (__service, __services) = (self.service.clone(), __services.clone());
                move |__received: #krate::service::Received<'_>| {
                    let __service = __service.clone();
                    let __opened = #opened;
                    async move { #answer }
                }
            });
        };
    };
    let context = &context.ident;
    let end = match method.kind {
        Kind::OneWay => quote!({ #answer } __call.end_message()),
        _ => quote!(let __answer = { #answer }; __call.end(__answer)),
    };
    quote! {
        #(#cfg)*
        registry.#register(__first + #index, {
            let (__service, __services) = (self.service.clone(), __services.clone());
            let __asks = __services.asks(__first + #index);
            move |__received: #krate::service::Received<'_>| {
                let __service = __service.clone();
                let (#context, __call) = __asks.begin(&__received);
                let __opened = #opened;
                async move {
                    // Dropped after the handler.
                    let __call = __call;
                    #end
                }
            }
        });
    }
}

/// The answer of a handler that sends a stream. `opened` is the pattern of its opened stream.
fn outgoing(names: &Names, out: &Outcome, opened: TokenStream, run: TokenStream) -> TokenStream {
    let Names { krate, chosen, .. } = names;
    let (_, error) = names.parts(out);
    let (map, whole) = (names.outcome(out, quote!(item)), &out.whole);
    let items = match &out.parts {
        Parts::Both(..) => run,
        _ => quote!(#krate::service::Mapped::new(#run, |item: #whole| #map)),
    };
    quote! {
        match __opened {
            ::core::result::Result::Ok((#opened)) => {
                __outgoing.send_all::<#chosen, _, #error, _>(#items).await
            }
            ::core::result::Result::Err(refusal) => #krate::service::StreamEnd::refused(refusal),
        }
    }
}

fn answer_type(names: &Names, out: &Outcome) -> TokenStream {
    let Names { krate, chosen, .. } = names;
    let (_, error) = names.parts(out);
    quote!(#krate::service::Answer::<#chosen, _, #error>)
}
