//! The client.

use proc_macro2::TokenStream;
use quote::quote;

use super::{Names, arguments_sent};
use crate::model::{Kind, Method, Role, Service};

pub(super) fn expand(service: &Service, names: &Names) -> TokenStream {
    let Names { krate, codec, client, .. } = names;
    let Service { ident, vis, methods, name, .. } = service;
    let calls = methods.iter().map(|method| call(service, method, names));
    let mut ordered: Vec<&Method> = methods.iter().collect();
    ordered.sort_by_key(|method| method.name());
    let table = ordered.iter().map(|method| {
        let (name, signature, cfg) = (method.name(), method.signature(), &method.cfg);
        quote!(#(#cfg)* #krate::service::MethodInfo::new(#name, #signature))
    });
    let allow = super::traits::allow();
    let note = format!("Calls the service [`{ident}`]. Clones share the connection.");
    quote! {
        #[doc = #note]
        #[allow(dead_code)]
        #vis struct #client<Chan: #krate::service::Channel = #krate::service::DefaultChannel> {
            client: #krate::service::TypedClient<Chan>,
        }

        impl<Chan: #krate::service::Channel> ::core::clone::Clone for #client<Chan> {
            fn clone(&self) -> Self {
                Self { client: ::core::clone::Clone::clone(&self.client) }
            }
        }

        impl<Chan: #krate::service::Channel> ::core::fmt::Debug for #client<Chan> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#client)).finish_non_exhaustive()
            }
        }

        #[allow(dead_code)]
        impl #client {
            /// The names and the fingerprint of the service.
            #vis const SERVICE: #krate::service::ServiceInfo = #krate::service::ServiceInfo::new(
                #name,
                <#codec as #krate::service::Codec>::NAME,
                &[#(#table),*],
            );

            /// Connects with a server, and checks that it has this service in this version.
            ///
            /// # Errors
            /// No connection, or the server has another service or another version of it.
            #vis async fn connect(
                uri: &str,
            ) -> ::core::result::Result<Self, #krate::service::HelloError> {
                Self::new(#krate::service::dial(uri).await?).await
            }
        }

        #allow
        impl<Chan: #krate::service::Channel> #client<Chan> {
            /// A client on this connection, after a check that its server has this service in this
            /// version.
            ///
            /// # Errors
            /// The check failed, or the server has another service or another version of it.
            #vis async fn new(
                channel: Chan,
            ) -> ::core::result::Result<Self, #krate::service::HelloError> {
                let client = #krate::service::TypedClient::checked(channel, &#client::SERVICE);
                ::core::result::Result::Ok(Self { client: client.await? })
            }

            /// A client on this connection. Its first call asks the server which of the methods it
            /// has, which takes a round trip. If the server has another version of the service, calls
            /// of methods that it does not have are refused, and the others may fail with errors of
            /// decoding, or return wrong values.
            #vis fn unchecked(channel: Chan) -> Self {
                Self { client: #krate::service::TypedClient::unchecked(channel, &#client::SERVICE) }
            }

            /// A client whose calls, messages and streams have this metadata, on the same connection.
            /// A call's own pair replaces one with its key.
            #vis fn with_metadata(&self, metadata: #krate::service::Metadata) -> Self {
                Self { client: self.client.with_metadata(metadata) }
            }

            /// The connection.
            #vis fn channel(&self) -> &Chan {
                self.client.channel()
            }

            #(#calls)*
        }
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
            (quote!(Unary<'_, Chan, #chosen, #value, #error>), quote!(unary))
        }
        Kind::OneWay => (quote!(OneWay<'_, Chan>), quote!(one_way::<#chosen, _>)),
        Kind::ServerStream(stream) => {
            let (value, error) = names.parts(&stream.0);
            (quote!(OpenStream<'_, Chan, #chosen, #value, #error>), quote!(open_stream))
        }
        Kind::ClientStream(stream) => {
            let (out, item) = &**stream;
            let (value, error) = names.parts(out);
            (quote!(OpenUpload<'_, Chan, #chosen, #item, #value, #error>), quote!(open_upload))
        }
    };
    let sent = arguments_sent(method);
    quote! {
        #(#attributes)*
        #vis fn #ident(&self, #(#parameters),*) -> #krate::service::#returned {
            self.client.#function(#index, #sent)
        }
    }
}
