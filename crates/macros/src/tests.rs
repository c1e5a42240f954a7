//! Errors of the attribute, with the tokens that they point at.

use proc_macro2::TokenStream;

use crate::generate;

/// The errors of a service: the text that each points at, and what it says.
fn errors(options: &str, item: &str) -> Vec<(String, String)> {
    let options: TokenStream = options.parse().unwrap();
    let tokens: TokenStream = item.parse().unwrap();
    let Err(error) = generate(options, tokens) else { return Vec::new() };
    let lines: Vec<&str> = item.lines().collect();
    let pointed = |error: &syn::Error| {
        let (start, end) = (error.span().start(), error.span().end());
        if start.line != end.line {
            return lines[start.line - 1][start.column..].to_owned();
        }
        let line = lines.get(start.line - 1).copied().unwrap_or_default();
        line.get(start.column..end.column).unwrap_or_default().to_owned()
    };
    error.into_iter().map(|e| (pointed(&e), e.to_string())).collect()
}

/// The errors of a service with one method.
fn method(method: &str) -> Vec<(String, String)> {
    errors("", &format!("trait Kv {{\n{method}\n}}"))
}

#[track_caller]
fn one(method_text: &str, at: &str, says: &str) {
    let found = method(method_text);
    let [(pointed, text)] = &found[..] else { panic!("{method_text}: {found:#?}") };
    assert_eq!(pointed, at, "{method_text}: {text}");
    assert!(text.contains(says), "{method_text}: {text}");
}

#[test]
fn errors_point_at_the_token_that_is_wrong() {
    one("async fn get(key: u8);", "get", "takes `&self` as its first parameter");
    one("async fn get();", "get", "takes `&self` as its first parameter");
    one("async fn get(&mut self);", "&mut self", "takes `&self`");
    one("async fn get(self);", "self", "takes `&self`");
    one("async fn get<T>(&self, key: T);", "<T>", "no generic parameters");
    one("async fn get(&self, (a, b): (u8, u8));", "(a, b)", "a plain name");
    one("async fn get(&self, _: u8);", "_", "a plain name");
    one("async fn get(&self, mut a: u8);", "mut a", "a plain name");
    one("async fn get(&self, a: &str);", "&str", "an owned type");
    one("async fn get(&self, a: impl Into<u8>);", "impl Into<u8>", "a concrete type");
    one("async fn get(&self) -> u8 { 1 }", "{ 1 }", "no body");
    one("fn get(&self) -> u8;", "fn", "is an `async fn`, or returns");
    one("fn get(&self) -> impl Clone;", "impl Clone", "impl Stream<Item = Result<T, E>>");
    one("fn get(&self) -> impl Stream;", "impl Stream", "impl Stream<Item = Result<T, E>>");
    one("async fn new(&self);", "new", "rename the method");
    one("type Key;", "type Key;", "methods only");
    one("const N: u8;", "const N: u8;", "methods only");
}

#[test]
fn a_method_has_one_stream_each_way() {
    one("async fn a(&self, x: Incoming<u8>, y: Incoming<u8>);", "Incoming<u8>", "one stream");
    let both = "fn a(&self, x: Incoming<u8>, y: u8) -> impl Stream<Item = u8>;";
    assert_eq!(method(both), []);
    let text = "fn a(&self, x: Incoming<u8>, y: Incoming<u8>) -> impl Stream<Item = u8>;";
    one(text, "Incoming<u8>", "one stream of the client");
    one(&format!("async {both}"), "async", "remove `async`");
    one(&format!("#[oneway] {both}"), "#[oneway]", "returns nothing");
    one("async fn a(&self) -> impl Stream<Item = u8>;", "async", "remove `async`");
    one("#[oneway] async fn a(&self, x: Incoming<u8>);", "Incoming<u8>", "has no stream");
    one("#[oneway] async fn a(&self) -> u8;", "u8", "returns nothing");
    one("#[oneway] fn a(&self) -> impl Stream<Item = u8>;", "#[oneway]", "returns nothing");
}

#[test]
fn a_method_has_one_context_by_value() {
    assert_eq!(method("async fn a(&self, x: u8, cx: courser::service::CallContext);"), []);
    one("async fn a(&self, cx: &CallContext);", "&CallContext", "without `&`");
    one("async fn a(&self, a: CallContext, b: CallContext);", "CallContext", "one context");
    assert_eq!(method("async fn a(&self, a: CallContext<u8>, b: CallContext<u8>);"), []);
}

#[test]
fn unknown_attributes_and_options_are_refused() {
    one(
        "#[cache] async fn a(&self);",
        "cache",
        "known are `oneway`, `idempotent`, `deadline`, `cfg`",
    );
    one("#[method(id = 7)] async fn a(&self);", "#[method(id = 7)]", "remove `#[method]`");
    one("#[oneway(x)] async fn a(&self);", "(", "unexpected token");
    one("#[oneway] #[oneway] async fn a(&self);", "#[oneway]", "twice");
    one("async fn a(&self, #[x] b: u8);", "#[x]", "no attributes");
    for (options, says) in [
        ("colour = 1", "unknown option; options are `codec = Path`"),
        ("codec = A, codec = B", "`codec` is set twice"),
        ("name = \"\"", "1 to 100 bytes"),
        ("codec", "expected `=`"),
    ] {
        let found = errors(options, "trait Kv {}");
        assert!(found.len() == 1 && found[0].1.contains(says), "{options}: {found:?}");
    }
    let found = errors("", "#[derive(Clone)] trait Kv {}");
    assert!(found[0].0 == "derive" && found[0].1.contains("a service"), "{found:?}");
    assert!(errors("", "trait Kv<T>: Clone {}").len() == 2);
}

#[test]
fn idempotent_methods_are_unary_and_deadlines_have_units() {
    assert_eq!(method("#[idempotent] #[deadline(\"50 ms\")] async fn a(&self);"), []);
    assert_eq!(method("#[deadline(\"1 s\")] fn a(&self) -> impl Stream<Item = u8>;"), []);
    one("#[idempotent] #[oneway] async fn a(&self);", "#[idempotent]", "remove `#[idempotent]`");
    one("#[idempotent] fn a(&self) -> impl Stream<Item = u8>;", "#[idempotent]", "remove");
    one("#[idempotent(yes)] async fn a(&self);", "(", "unexpected token");
    one("#[idempotent] #[idempotent] async fn a(&self);", "#[idempotent]", "twice");
    one("#[deadline(\"5\")] async fn a(&self);", "\"5\"", "a whole number and a unit");
    one(
        "#[deadline(\"1 s\")] #[deadline(\"2 s\")] async fn a(&self);",
        "#[deadline(\"2 s\")]",
        "twice",
    );
    one("#[deadline] async fn a(&self);", "deadline", "attribute arguments");
    one("async fn with_retries(&self);", "with_retries", "rename the method");
    one("async fn with_deadline(&self);", "with_deadline", "rename the method");
    one("async fn with_middleware(&self);", "with_middleware", "rename the method");
}

#[test]
fn names_of_methods_differ_and_have_a_length() {
    one("async fn a(&self);\nasync fn a(&self);", "a", "two methods are named `a`");
    let long = "a".repeat(256);
    one(&format!("async fn {long}(&self);"), &long, "at most 255 bytes");
    let many: Vec<_> = (0..4_097).map(|n| format!("async fn m{n}(&self);")).collect();
    one(&many.join("\n"), "m4096", "at most 4096 methods");
}

#[test]
fn all_errors_of_a_service_are_reported_together() {
    let found = method("async fn a(key: u8);\nfn b(&self);\ntype T;");
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn the_generated_code_is_items_with_the_documentation_of_the_trait() {
    let item = "/// A store.\npub trait Kv {\n/// Reads.\nasync fn get(&self, key: u8) -> u8;\n}";
    let code = generate(TokenStream::new(), item.parse().unwrap()).unwrap();
    let text = code.to_string();
    assert!(syn::parse2::<syn::File>(code).is_ok());
    assert_eq!(text.matches("\" A store.\"").count(), 2);
    assert_eq!(text.matches("\" Reads.\"").count(), 3, "both traits and the client");
    for part in ["pub trait Kv", "pub trait LocalKv", "pub struct KvClient", "pub struct KvServer"]
    {
        assert!(text.contains(part), "{part}");
    }
    // Paths do not depend on what is in scope.
    for path in ["std ::", "core ::", "courser ::"] {
        let global = format!(":: {path}");
        assert_eq!(text.matches(path).count(), text.matches(&global).count(), "{path}");
    }
}
