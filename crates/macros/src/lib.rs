//! The attribute `#[courser::service]`, which generates the client and the server of a trait. It is
//! documented where `courser` re-exports it.
//!
//! `options.rs` reads the arguments of the attribute, `model.rs` the trait, `kinds.rs` the types of
//! its methods, and `expand/` writes the code.

#![forbid(unsafe_code)]

mod deadline;
mod expand;
mod kinds;
mod model;
mod options;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Generates the client and the server of a trait. See `courser::service` for what it generates,
/// the kinds of methods, and an example.
///
/// # Options
/// `codec = Path`: the codec, default `Named` (feature `named` of `courser`). `name = "Text"`: the name of the service on the
/// network, default the name of the trait. `crate = path`: where `courser` is, default `::courser`.
///
/// # Names
/// A method has its name on the network, without a `_` at its end: `connect_` is `connect` there, which is a
/// function of the generated client.
///
/// # Context
/// A parameter of type `CallContext` is made by the server: the peer of the call, its deadline, its
/// cancellation. It is not sent, the client's method does not have it, and it is no part of the version.
///
/// # Attributes of methods
/// `#[oneway]`: a message without an answer.
///
/// `#[idempotent]`: running the handler twice has the effect of running it once, so that a client with
/// retries may repeat calls that may have been executed. For methods with one request and one response.
///
/// `#[deadline("50 ms")]`: the deadline of calls that have none of their own, a whole number and a unit: `us`,
/// `ms` or `s`, up to an hour. For a stream it is that of the whole stream.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    generate(options.into(), item.into()).unwrap_or_else(|e| e.into_compile_error()).into()
}

fn generate(
    options: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> syn::Result<proc_macro2::TokenStream> {
    let options = options::read(options)?;
    let service = model::read(options, item)?;
    Ok(expand::service(&service))
}
