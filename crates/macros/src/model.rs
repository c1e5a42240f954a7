//! The trait of a service: what its methods are, and which forms are refused.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, FnArg, Ident, ItemTrait, Meta, Pat, TraitItem, TraitItemFn, Type, TypeImplTrait,
    Visibility,
};

use crate::deadline;
use crate::kinds::{self, Outcome};
use crate::options::Options;

/// A service.
pub(crate) struct Service {
    pub(crate) options: Options,
    /// The name on the network.
    pub(crate) name: String,
    pub(crate) ident: Ident,
    pub(crate) vis: Visibility,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) methods: Vec<Method>,
}

/// A method of a service.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    pub(crate) attributes: Vec<Attribute>,
    /// The `attributes` that remove the method.
    pub(crate) cfg: Vec<Attribute>,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) kind: Kind,
    pub(crate) is_idempotent: bool,
    /// The default deadline, ns.
    pub(crate) deadline_ns: Option<u64>,
}

/// A parameter of a method.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    /// The type in the trait.
    pub(crate) ty: Type,
    pub(crate) role: Role,
}

pub(crate) enum Role {
    Value,
    /// `View<T>`: the client passes a `&T`.
    View(Type),
    /// `Incoming<T>`: the items that the client sends.
    Incoming(Type),
    /// `CallContext`: made by the server.
    Context,
}

pub(crate) enum Kind {
    Unary(Box<Outcome>),
    OneWay,
    /// The items, and the whole return type.
    ServerStream(Box<(Outcome, TypeImplTrait)>),
    /// The outcome, and the items that the client sends.
    ClientStream(Box<(Outcome, Type)>),
    /// The server's items, the whole return type, and the items that the client sends.
    BothStreams(Box<(Outcome, TypeImplTrait, Type)>),
}

impl Kind {
    /// The variant of `courser::service::MethodKind`.
    pub(crate) fn variant(&self) -> Ident {
        let name = match self {
            Kind::Unary(_) => "Unary",
            Kind::OneWay => "OneWay",
            Kind::ServerStream(_) => "ServerStream",
            Kind::ClientStream(_) => "ClientStream",
            Kind::BothStreams(_) => "BothStreams",
        };
        Ident::new(name, Span::mixed_site())
    }
}

impl Method {
    /// The parameters that are part of the request.
    pub(crate) fn sent(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|a| !matches!(a.role, Role::Incoming(_) | Role::Context))
    }

    /// The parameter that the server makes.
    pub(crate) fn context(&self) -> Option<&Argument> {
        self.arguments.iter().find(|a| matches!(a.role, Role::Context))
    }

    /// The parameter with the items that the client sends.
    pub(crate) fn incoming(&self) -> Option<&Ident> {
        let incoming = self.arguments.iter().find(|a| matches!(a.role, Role::Incoming(_)));
        incoming.map(|a| &a.ident)
    }

    /// The name on the network: without a `_` at its end, by which a method has another name than a
    /// function of the generated client.
    pub(crate) fn name(&self) -> String {
        let name = plain(&self.ident);
        name.strip_suffix('_').filter(|rest| !rest.is_empty()).map_or(name.clone(), str::to_owned)
    }
}

/// Errors of several places, all of which are reported.
#[derive(Default)]
struct Errors(Option<syn::Error>);

impl Errors {
    fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn at(&mut self, span: Span, text: impl std::fmt::Display) {
        self.add(syn::Error::new(span, text));
    }

    fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

pub(crate) fn read(options: Options, item: TokenStream) -> syn::Result<Service> {
    let item: ItemTrait = syn::parse2(item)?;
    let mut errors = Errors::default();
    let generics = &item.generics;
    if !generics.params.is_empty() || generics.where_clause.is_some() {
        errors.at(generics.span(), "a service has no generic parameters");
    }
    if !item.supertraits.is_empty() {
        let text = "a service has no supertraits; the attribute adds `Send + Sync + 'static`";
        errors.at(item.supertraits.span(), text);
    }
    if let Some(token) = &item.unsafety {
        errors.at(token.span, "a service is a safe trait");
    }
    check_attributes(&item.attrs, "a service", &mut errors);
    let name = options.name.as_ref().map_or_else(|| plain(&item.ident), |name| name.value());
    let mut methods = Vec::new();
    for inner in item.items {
        match inner {
            TraitItem::Fn(f) => match method(f) {
                Ok(method) => methods.push(method),
                Err(e) => errors.add(e),
            },
            other => errors.at(other.span(), "a service has methods only"),
        }
    }
    check_names(&methods, &mut errors);
    errors.finish()?;
    let (ident, vis, attributes) = (item.ident, item.vis, passed(item.attrs));
    Ok(Service { options, name, ident, vis, attributes, methods })
}

/// The name without the `r#` of a raw identifier.
pub(crate) fn plain(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
}

fn method(f: TraitItemFn) -> syn::Result<Method> {
    let mut errors = Errors::default();
    let own = own_attributes(&f.attrs, &mut errors);
    check_form(&f, &mut errors);
    let arguments = arguments(&f, &mut errors);
    let kind = match kind(&f, &arguments, own.oneway) {
        Ok(kind) => Some(kind),
        Err(e) => {
            errors.add(e);
            None
        }
    };
    if let (Some(span), Some(kind)) = (own.idempotent, &kind)
        && !matches!(kind, Kind::Unary(_))
    {
        let text =
            "only calls with one request and one response are repeated; remove `#[idempotent]`";
        errors.at(span, text);
    }
    errors.finish()?;
    let (is_idempotent, deadline_ns) = (own.idempotent.is_some(), own.deadline_ns);
    let ident = f.sig.ident;
    let attributes = passed(f.attrs);
    let cfg = attributes.iter().filter(|a| a.path().is_ident("cfg")).cloned().collect();
    let kind = kind.expect("without errors there is a kind");
    Ok(Method { ident, attributes, cfg, arguments, kind, is_idempotent, deadline_ns })
}

/// Refuses what no method of a service has.
fn check_form(f: &TraitItemFn, errors: &mut Errors) {
    let sig = &f.sig;
    if !sig.generics.params.is_empty() || sig.generics.where_clause.is_some() {
        let text =
            "a method of a service has no generic parameters: its types are those on the network";
        errors.at(sig.generics.span(), text);
    }
    if let Some(body) = &f.default {
        errors.at(body.span(), "a method of a service has no body; servers implement it");
    }
    if let Some(token) = &sig.constness {
        errors.at(token.span, "a method of a service is not `const`");
    }
    if let Some(token) = &sig.unsafety {
        errors.at(token.span, "a method of a service is not `unsafe`");
    }
    if let Some(abi) = &sig.abi {
        errors.at(abi.span(), "a method of a service has no ABI");
    }
    if let Some(variadic) = &sig.variadic {
        errors.at(variadic.span(), "a method of a service has no variadic parameters");
    }
    const TAKEN: [&str; 9] = [
        "new",
        "connect",
        "unchecked",
        "channel",
        "with_deadline",
        "with_metadata",
        "with_middleware",
        "with_retries",
        "method_stats",
    ];
    if TAKEN.iter().any(|taken| sig.ident == taken) {
        let text = "the generated client has a function of this name; rename the method";
        errors.at(sig.ident.span(), text);
    }
    match sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) => {
            let shared =
                receiver.reference.as_ref().is_some_and(|(_, lifetime)| lifetime.is_none());
            if !shared || receiver.mutability.is_some() || receiver.colon_token.is_some() {
                errors
                    .at(receiver.span(), "a method of a service takes `&self`: calls run together");
            }
        }
        _ => errors
            .at(sig.ident.span(), "a method of a service takes `&self` as its first parameter"),
    }
}

fn arguments(f: &TraitItemFn, errors: &mut Errors) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for input in &f.sig.inputs {
        let FnArg::Typed(typed) = input else { continue };
        for attribute in &typed.attrs {
            errors.at(attribute.span(), "parameters of a method of a service have no attributes");
        }
        let ident = match &*typed.pat {
            Pat::Ident(p) if p.by_ref.is_none() && p.mutability.is_none() && p.subpat.is_none() => {
                p.ident.clone()
            }
            other => {
                errors.at(other.span(), "a parameter is a plain name, such as `key: Key`");
                continue;
            }
        };
        match &*typed.ty {
            Type::Reference(r) if kinds::is_context(&r.elem) => {
                errors
                    .at(r.span(), "the context is `cx: CallContext`, without `&`: clones share it");
            }
            Type::Reference(r) => errors.at(
                r.span(),
                "a parameter is an owned type, such as `String` for `&str`: the server decodes it",
            ),
            Type::ImplTrait(t) => errors.at(
                t.span(),
                "a parameter is a concrete type; items that the client sends are `Incoming<T>`",
            ),
            _ => {}
        }
        let role =
            match (kinds::argument(&typed.ty, "Incoming"), kinds::argument(&typed.ty, "View")) {
                (Some(item), _) => Role::Incoming(item.clone()),
                (_, Some(of)) => Role::View(of.clone()),
                _ if kinds::is_context(&typed.ty) => Role::Context,
                _ => Role::Value,
            };
        if let Role::Context = role
            && arguments.iter().any(|a: &Argument| matches!(a.role, Role::Context))
        {
            errors.at(typed.ty.span(), "a method has one context; remove one `CallContext`");
        }
        arguments.push(Argument { ident, ty: (*typed.ty).clone(), role });
    }
    arguments
}

fn kind(f: &TraitItemFn, arguments: &[Argument], oneway: Option<Span>) -> syn::Result<Kind> {
    let output = &f.sig.output;
    let error = |span, text| Err(syn::Error::new(span, text));
    let mut streams = arguments.iter().filter_map(|a| match &a.role {
        Role::Incoming(item) => Some((a, item)),
        _ => None,
    });
    let (incoming, second) = (streams.next(), streams.next());
    if let Some((argument, _)) = second {
        let text = "a method has one stream of the client; remove one `Incoming`";
        return error(argument.ty.span(), text);
    }
    if let Some((whole, items)) = kinds::stream(output)? {
        if let Some(token) = f.sig.asyncness {
            return error(
                token.span,
                "a method that returns a stream is no `async fn`; remove `async`",
            );
        }
        if let Some(span) = oneway {
            return error(span, "a one-way method returns nothing; remove `#[oneway]`");
        }
        let whole = whole.clone();
        return Ok(match incoming {
            None => Kind::ServerStream(Box::new((items, whole))),
            Some((_, sent)) => Kind::BothStreams(Box::new((items, whole, sent.clone()))),
        });
    }
    if f.sig.asyncness.is_none() {
        let text = "a method is an `async fn`, or returns `impl Stream<Item = Result<T, E>>`";
        return error(f.sig.fn_token.span, text);
    }
    let outcome = Outcome::returned(output);
    match (oneway, incoming) {
        (None, None) => Ok(Kind::Unary(Box::new(outcome))),
        (None, Some((_, item))) => Ok(Kind::ClientStream(Box::new((outcome, item.clone())))),
        (Some(_), Some((argument, _))) => {
            error(argument.ty.span(), "a one-way method has no stream; remove `#[oneway]`")
        }
        (Some(_), None) => match output {
            syn::ReturnType::Default => Ok(Kind::OneWay),
            syn::ReturnType::Type(_, ty) => {
                error(ty.span(), "a one-way method returns nothing; remove `#[oneway]` or the type")
            }
        },
    }
}

/// Attributes of the library at a method.
#[derive(Default)]
struct Own {
    oneway: Option<Span>,
    idempotent: Option<Span>,
    deadline_ns: Option<u64>,
}

fn is_own(attribute: &Attribute) -> bool {
    ["oneway", "idempotent", "deadline", "method"].iter().any(|own| attribute.path().is_ident(own))
}

fn own_attributes(attributes: &[Attribute], errors: &mut Errors) -> Own {
    let mut own = Own::default();
    let mut others = Vec::new();
    for attribute in attributes {
        if attribute.path().is_ident("oneway") {
            if let Err(e) = attribute.meta.require_path_only() {
                errors.add(e);
            }
            if own.oneway.replace(attribute.span()).is_some() {
                errors.at(attribute.span(), "`#[oneway]` is there twice; remove one");
            }
        } else if attribute.path().is_ident("idempotent") {
            if let Err(e) = attribute.meta.require_path_only() {
                errors.add(e);
            }
            if own.idempotent.replace(attribute.span()).is_some() {
                errors.at(attribute.span(), "`#[idempotent]` is there twice; remove one");
            }
        } else if attribute.path().is_ident("deadline") {
            match deadline::read(attribute) {
                Ok(deadline_ns) if own.deadline_ns.replace(deadline_ns).is_some() => {
                    errors.at(attribute.span(), "`#[deadline]` is there twice; remove one");
                }
                Ok(_) => {}
                Err(e) => errors.add(e),
            }
        } else if attribute.path().is_ident("method") {
            let text =
                "methods have no numbers of their own: servers assign them; remove `#[method]`";
            errors.at(attribute.span(), text);
        } else {
            others.push(attribute.clone());
        }
    }
    check_attributes(&others, "a method", errors);
    own
}

/// The attributes that the generated code carries. An expected lint may be silent in one of the
/// copies, so it is allowed.
fn passed(mut attributes: Vec<Attribute>) -> Vec<Attribute> {
    attributes.retain(|a| !is_own(a));
    for attribute in &mut attributes {
        if let Meta::List(list) = &mut attribute.meta
            && list.path.is_ident("expect")
        {
            list.path = Ident::new("allow", list.path.span()).into();
        }
    }
    attributes
}

/// Attributes that the generated code can carry. Others would be dropped, or change one of the
/// copies.
fn check_attributes(attributes: &[Attribute], of: &str, errors: &mut Errors) {
    const PASSED: [&str; 6] = ["doc", "allow", "expect", "warn", "deny", "deprecated"];
    let of_methods = ["cfg", "must_use"].iter().filter(|_| of == "a method");
    for attribute in attributes {
        if !PASSED.iter().chain(of_methods.clone()).any(|a| attribute.path().is_ident(a)) {
            let own = if of == "a method" {
                "`oneway`, `idempotent`, `deadline`, `cfg`, `must_use`, "
            } else {
                ""
            };
            errors.at(
                attribute.path().span(),
                format!("unknown attribute of {of} of a service; known are {own}`doc`, `deprecated` and levels of lints"),
            );
        }
    }
}

/// Most methods of a service.
const MOST_METHODS: usize = 4_096;
/// Most bytes of a name.
const MOST_BYTES: usize = 255;

fn check_names(methods: &[Method], errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for method in methods {
        let is_optional = !method.cfg.is_empty();
        let name = method.name();
        if name.len() > MOST_BYTES {
            let text = format!("the name of a method has at most {MOST_BYTES} bytes; shorten it");
            errors.at(method.ident.span(), text);
        }
        // Among methods with conditions the compiler finds two that are there together.
        if !is_optional && !names.insert(name) {
            let text = format!("two methods are named `{}`; rename one", method.ident);
            errors.at(method.ident.span(), text);
        }
    }
    if let Some(method) = methods.get(MOST_METHODS) {
        let text = format!("a service has at most {MOST_METHODS} methods; split it");
        errors.at(method.ident.span(), text);
    }
}
