//! The trait of a service.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::rc::Rc;

use prost_build::{Method, Service, ServiceGenerator};

use crate::messages::{self, Messages};
use crate::names::Names;
use crate::places::{Places, joined};

/// Functions of a generated client, which no method can have the name of.
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
/// Most bytes of the name of a service.
const MOST_BYTES: usize = 100;

/// Settings of services.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) krate: String,
    pub(crate) error: String,
    pub(crate) contexts: Names,
    pub(crate) one_way: Names,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            krate: "::courser".to_owned(),
            error: String::new(),
            contexts: Names::new("Builder::context"),
            one_way: Names::new("Builder::one_way"),
        }
    }
}

/// Writes traits. It cannot return errors where it is called, so it collects them.
pub(crate) struct Generator {
    pub(crate) settings: Settings,
    pub(crate) places: Rc<Places>,
    pub(crate) messages: Messages,
    pub(crate) errors: Rc<RefCell<Vec<String>>>,
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, out: &mut String) {
        let name = joined(&service.package, &service.proto_name);
        self.check(&service, &name);
        let krate = &self.settings.krate;
        let methods: Vec<_> = service.methods.iter().map(types).collect();
        let messages = format!("CourserMessagesOf{}", service.name);
        messages::write(&self.messages, (krate, &messages), &methods, out);
        service.comments.append_with_indent(0, out);
        let path = if krate == "::courser" { String::new() } else { format!(", crate = {krate}") };
        let _ = writeln!(
            out,
            "#[{krate}::service(codec = Prost, name = {name:?}, messages = {messages}{path})]\npub trait {} {{",
            service.name
        );
        for method in &service.methods {
            self.method(method, &name, out);
        }
        out.push_str("}\n");
    }
}

impl Generator {
    fn error(&self, of: &str, text: &str) {
        self.errors.borrow_mut().push(format!("{}: {text}", self.places.of(of)));
    }

    /// Refuses names that cannot be generated.
    fn check(&self, service: &Service, name: &str) {
        if name.len() > MOST_BYTES {
            let text = format!(
                "a service has a name of at most {MOST_BYTES} bytes with its package, and `{name}` is longer; shorten it"
            );
            self.error(name, &text);
        }
        let own = &service.name;
        let others = self.places.other_services(&service.package, own);
        let of_others: Vec<_> = others.into_iter().flat_map(generated).collect();
        for made in generated(own) {
            if of_others.contains(&made) {
                let text = format!(
                    "`{made}` is generated for the service `{own}`, and for another service of the package; rename one"
                );
                self.error(name, &text);
            }
            if self.places.has_type(&service.package, &made) {
                let text = format!(
                    "`{made}` is generated for the service `{own}`, and a message or an enum of the package has this name; rename one"
                );
                self.error(name, &text);
            }
        }
        let mut seen = BTreeSet::new();
        for method in &service.methods {
            if method.input_type.rsplit("::").next() == Some("CallContext") {
                let text = "`CallContext` is the name of the library's context of a call; rename the message";
                self.error(&joined(name, &method.proto_name), text);
            }
            if !seen.insert(&method.name) {
                let text = format!(
                    "two methods of the service `{own}` are `{}` in snake case; rename one",
                    method.name
                );
                self.error(&joined(name, &method.proto_name), &text);
            }
        }
    }

    fn method(&self, method: &Method, service: &str, out: &mut String) {
        let settings = &self.settings;
        let (krate, name) = (&settings.krate, joined(service, &method.proto_name));
        method.comments.append_with_indent(1, out);
        if method.options.deprecated() {
            out.push_str("    #[deprecated]\n");
        }
        let one_way = settings.one_way.contain(service, &name);
        if one_way {
            self.check_one_way(method, &name);
            out.push_str("    #[oneway]\n");
        }
        // Calls with one request and one response are repeated, and no others. 0: not stated.
        let is_call = !(one_way || method.client_streaming || method.server_streaming);
        if is_call && method.options.idempotency_level() as i32 != 0 {
            out.push_str("    #[idempotent]\n");
        }
        let mut parameters = String::from("&self");
        if settings.contexts.contain(service, &name) {
            let _ = write!(parameters, ", cx: {krate}::service::CallContext");
        }
        match (method.client_streaming, method.input_type.as_str()) {
            (true, item) => {
                let _ = write!(parameters, ", requests: {krate}::service::Incoming<{item}>");
            }
            (false, "()") => {}
            (false, message) => {
                let _ = write!(parameters, ", request: {message}");
            }
        }
        let error = match settings.error.as_str() {
            "" => format!("{krate}::grpc::Status"),
            path => path.to_owned(),
        };
        let outcome = format!("::core::result::Result<{}, {error}>", method.output_type);
        let (word, returned) = match (one_way, method.server_streaming) {
            (true, _) => ("async fn", String::new()),
            (_, false) => ("async fn", format!(" -> {outcome}")),
            (_, true) => ("fn", format!(" -> impl {krate}::service::Stream<Item = {outcome}>")),
        };
        let ident = identifier(&method.name);
        let _ = writeln!(out, "    {word} {ident}({parameters}){returned};");
    }

    fn check_one_way(&self, method: &Method, name: &str) {
        if method.client_streaming || method.server_streaming {
            self.error(name, "a one-way method has no stream; remove it from Builder::one_way");
        } else if method.output_proto_type != ".google.protobuf.Empty" {
            let text = "a one-way method returns `google.protobuf.Empty`; return that, or remove it from Builder::one_way";
            self.error(name, text);
        }
    }
}

/// A method with its messages. Its name on the network is that of the trait without an added `_`.
fn types(method: &Method) -> messages::Types<'_> {
    let name = method.name.trim_start_matches("r#");
    let name = name.strip_suffix('_').filter(|rest| !rest.is_empty()).unwrap_or(name);
    (name.to_owned(), &method.input_proto_type, &method.output_proto_type)
}

/// The names of types that are generated for a service.
fn generated(service: &str) -> [String; 6] {
    let own = service.to_owned();
    [
        own,
        format!("{service}Client"),
        format!("{service}Server"),
        format!("Local{service}"),
        format!("CodecOf{service}"),
        format!("CourserMessagesOf{service}"),
    ]
}

/// The name of a method in the trait.
fn identifier(name: &str) -> String {
    if TAKEN.contains(&name) { format!("{name}_") } else { name.to_owned() }
}
