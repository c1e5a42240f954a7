//! The client.

use proc_macro2::TokenStream;
use quote::quote;

use super::{Names, arguments_sent, arguments_type, arguments_types};
use crate::model::{Kind, Method, Role, Service, plain};

pub(super) fn expand(service: &Service, names: &Names) -> TokenStream {
    let Names { krate, codec, client, .. } = names;
    let Service { ident, vis, methods, name, .. } = service;
    let calls = methods.iter().map(|method| call(service, method, names));
    let mut ordered: Vec<&Method> = methods.iter().collect();
    ordered.sort_by_key(|method| method.name());
    let table = ordered.iter().map(|method| {
        let (name, cfg) = (method.name(), &method.cfg);
        let idempotent = method.is_idempotent.then(|| quote!(.idempotent()));
        quote!(#(#cfg)* #krate::service::MethodInfo::new(#name) #idempotent)
    });
    let shapes = ordered.iter().map(|method| {
        let (shape, cfg) = (shape(method, names), &method.cfg);
        let shape = match (&service.options.messages, method.name()) {
            (None, _) => shape,
            (Some(messages), name) => quote!(#messages.describe(#name, #shape)),
        };
        quote!(#(#cfg)* { all.push(#shape); })
    });
    let allow = super::traits::allow();
    let note = format!("Calls the service [`{ident}`]. Clones share the connection.");
    quote! {
        #[doc = #note]
        #[allow(dead_code)]
        #vis struct #client<CourserChan: #krate::service::Channel = #krate::service::DefaultChannel> {
            client: #krate::service::TypedClient<CourserChan>,
        }

        impl<CourserChan: #krate::service::Channel> ::core::clone::Clone for #client<CourserChan> {
            fn clone(&self) -> Self {
                Self { client: ::core::clone::Clone::clone(&self.client) }
            }
        }

        impl<CourserChan: #krate::service::Channel> ::core::fmt::Debug for #client<CourserChan> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#client)).finish_non_exhaustive()
            }
        }

        #[allow(dead_code)]
        impl #client {
            /// The names of the service and its methods, and the shapes of their values.
            #vis const SERVICE: #krate::service::ServiceInfo = {
                fn shapes() -> &'static [#krate::service::MethodShape] {
                    static SHAPES: ::std::sync::OnceLock<
                        ::std::vec::Vec<#krate::service::MethodShape>,
                    > = ::std::sync::OnceLock::new();
                    SHAPES.get_or_init(|| {
                        #[allow(unused_mut)]
                        let mut all = ::std::vec::Vec::new();
                        #(#shapes)*
                        all
                    })
                }
                #krate::service::ServiceInfo::new(
                    #name,
                    (
                        <#codec as #krate::service::Codec>::NAME,
                        <#codec as #krate::service::Codec>::reads,
                    ),
                    &[#(#table),*],
                    shapes,
                )
            };

            /// Connects with a server, and asks which of the methods it has. Calls of the others are
            /// refused: see `RpcError::UnknownMethod` and `RpcError::ShapeMismatch`.
            ///
            /// # Errors
            /// No connection, or the server does not have the service, or not with this codec.
            #vis async fn connect(
                uri: &str,
            ) -> ::core::result::Result<Self, #krate::service::HelloError> {
                Self::new(#krate::service::dial(uri).await?).await
            }
        }

        #allow
        impl<CourserChan: #krate::service::Channel> #client<CourserChan> {
            /// A client on this connection, after the server was asked which of the methods it has.
            ///
            /// # Errors
            /// The server was not reached, or does not have the service, or not with this codec.
            #vis async fn new(
                channel: CourserChan,
            ) -> ::core::result::Result<Self, #krate::service::HelloError> {
                let client = #krate::service::TypedClient::checked(channel, &#client::SERVICE);
                ::core::result::Result::Ok(Self { client: client.await? })
            }

            /// A client on this connection. Its first call asks the server which of the methods it
            /// has, which takes a round trip. If the server does not have the service, or has another
            /// codec, each call is refused.
            #vis fn unchecked(channel: CourserChan) -> Self {
                Self { client: #krate::service::TypedClient::unchecked(channel, &#client::SERVICE) }
            }

            /// A client whose calls, messages and streams have this metadata, on the same connection.
            /// A call's own pair replaces one with its key.
            #vis fn with_metadata(&self, metadata: #krate::service::Metadata) -> Self {
                Self { client: self.client.with_metadata(metadata) }
            }

            /// A client whose calls are seen by middleware, also by that of this client, which is outside, on
            /// the same connection.
            #vis fn with_middleware(&self, middleware: impl #krate::service::ClientMiddleware) -> Self {
                Self { client: self.client.with_middleware(middleware) }
            }

            /// A client whose calls, messages and streams have this deadline, in place of an earlier one, on
            /// the same connection. It holds for those that have none of their own (`.deadline(..)`) and
            /// whose method has no `#[deadline]`. A stream must end by then as a whole. `None`: no deadline.
            #vis fn with_deadline(
                &self,
                after: impl ::core::convert::Into<::core::option::Option<::core::time::Duration>>,
            ) -> Self {
                Self { client: self.client.with_deadline(after) }
            }

            /// A client whose unary calls are repeated when they fail and that is safe, in place of an earlier
            /// policy, on the same connection. A policy begins a new budget, so call this once, not for each
            /// request, or pass clones of one `Retries`.
            #vis fn with_retries(
                &self,
                retries: impl ::core::convert::Into<#krate::service::Retries>,
            ) -> Self {
                Self { client: self.client.with_retries(retries) }
            }

            /// The connection.
            #vis fn channel(&self) -> &CourserChan {
                self.client.channel()
            }

            /// Counters of each method of the service, of all its clients on this `Client`; none on other
            /// connections.
            #vis fn method_stats(&self) -> ::std::vec::Vec<#krate::service::MethodStats> {
                self.client.method_stats()
            }

            #(#calls)*
        }
    }
}

/// An expression of the shape of a method.
fn shape(method: &Method, names: &Names) -> TokenStream {
    let Names { krate, chosen, .. } = names;
    let arguments = arguments_type(method, names);
    let no_items = quote!(#krate::service::NoError);
    let ((value, error), sent) = match &method.kind {
        Kind::Unary(out) => (names.parts(out), no_items),
        Kind::OneWay => ((no_items.clone(), no_items.clone()), no_items),
        Kind::ServerStream(stream) => (names.parts(&stream.0), no_items),
        Kind::ClientStream(stream) => {
            let (out, item) = &**stream;
            (names.parts(out), quote!(#item))
        }
        Kind::BothStreams(streams) => {
            let (out, _, item) = &**streams;
            (names.parts(out), quote!(#item))
        }
    };
    let kind = method.kind.variant();
    let parts = arguments_types(method, names);
    if parts.len() > 1 {
        // Each has a shape of its own, as one that is not traced to its end hides those behind it.
        let parameters = method.sent().map(|argument| plain(&argument.ident));
        return quote! {
            #krate::service::method_shape_of_parts::<#chosen, #arguments, #sent, #value, #error>(
                #krate::service::MethodKind::#kind,
                &[#(#parameters),*],
                &[#({
                    #[allow(unused_imports)]
                    use #krate::service::AnyPart as _;
                    #krate::service::PartShape::<#chosen, #parts>::shape()
                }),*],
            )
        };
    }
    quote! {
        #krate::service::method_shape::<#chosen, #arguments, #sent, #value, #error>(
            #krate::service::MethodKind::#kind
        )
    }
}

fn call(service: &Service, method: &Method, names: &Names) -> TokenStream {
    let Names { krate, chosen, .. } = names;
    let vis = &service.vis;
    let Method { ident, attributes, kind, .. } = method;
    let index = names.index(method);
    let parameters = method.sent().map(|a| {
        let (name, ty) = (&a.ident, &a.ty);
        match &a.role {
            Role::View(of) => quote!(#name: &#of),
            _ => quote!(#name: #ty),
        }
    });
    let (returned, function) = match kind {
        Kind::Unary(out) => {
            let (value, error) = names.parts(out);
            (quote!(Unary<'_, CourserChan, #chosen, #value, #error>), quote!(unary))
        }
        Kind::OneWay => (quote!(OneWay<'_, CourserChan>), quote!(one_way::<#chosen, _>)),
        Kind::ServerStream(stream) => {
            let (value, error) = names.parts(&stream.0);
            (quote!(OpenStream<'_, CourserChan, #chosen, #value, #error>), quote!(open_stream))
        }
        Kind::ClientStream(stream) => {
            let (out, item) = &**stream;
            let (value, error) = names.parts(out);
            (
                quote!(OpenUpload<'_, CourserChan, #chosen, #item, #value, #error>),
                quote!(open_upload),
            )
        }
        Kind::BothStreams(streams) => {
            let (out, _, item) = &**streams;
            let (value, error) = names.parts(out);
            (
                quote!(OpenDuplex<'_, CourserChan, #chosen, #item, #value, #error>),
                quote!(open_duplex),
            )
        }
    };
    let sent = arguments_sent(method, names);
    let deadline = method.deadline_ns.map(|ns| {
        quote!(.deadline(::core::option::Option::Some(::core::time::Duration::from_nanos(#ns))))
    });
    quote! {
        #(#attributes)*
        #vis fn #ident(&self, #(#parameters),*) -> #krate::service::#returned {
            self.client.#function(#index, #sent) #deadline
        }
    }
}
