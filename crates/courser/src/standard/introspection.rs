//! A standard service for programs that watch a server: its statistics, and a list of its services.
//!
//! `courser stat ADDRESS` shows the statistics, `courser list ADDRESS` the services. Only clients of the
//! same machine are answered, unless the server allows others.

use std::fmt;
use std::sync::Arc;

use courser_buf::stats::Stats;
use courser_net::Transport;
use courser_proto::EndpointStats;

use super::json::Object;
use super::metrics::Metrics;
use crate::core::handled::HandlerStats;
use crate::core::{Lender, lent};
use crate::counts::MethodStats;
use crate::error::register::RegisterError;
use crate::rpc::Rpc;
use crate::server::{Server, ServerHandle, ServerStats, Serving};
use crate::service::{
    CallContext, LocalService, MethodKind, Peer, Service, ServiceInfo, ServiceStats, Services,
};

/// The version of the texts.
const FORMAT: u64 = 1;

/// The text of the error for clients that are not allowed.
const DENIED: &str = "only clients of the same machine may read statistics, over shared memory or a loopback \
                      address such as 127.0.0.1; connect so, or let the server allow others \
                      (Introspect::allow)";

/// The standard service that [`Introspect`] adds. Its client is `IntrospectionClient`. Errors are texts for
/// people.
///
/// ```
/// use courser::introspection::{Introspect, IntrospectionClient};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = courser::Server::bind("udp://127.0.0.1:0")?.add_introspection(Introspect::new())?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = IntrospectionClient::connect(&uri).await?;
/// assert!(client.metrics().await?.contains("# TYPE courser_"));
/// println!("{}", client.stat().await?);
/// # Ok(()) }) }
/// ```
#[courser_macros::service(codec = Bytes, name = "courser.Introspection", crate = crate)]
pub trait Introspection {
    /// The statistics of the server as a JSON object, with the names of docs/statistics.md. Names may be
    /// added in any version.
    async fn stat(&self, cx: CallContext) -> Result<String, String>;
    /// The statistics as OpenMetrics text: see [`Metrics`].
    async fn metrics(&self, cx: CallContext) -> Result<String, String>;
    /// The services of the server with their methods, kinds, shapes and fingerprints, as a JSON object.
    async fn list(&self, cx: CallContext) -> Result<String, String>;
}

/// Lets clients read the statistics of a server, and the list of its services: by default those of the
/// same machine, over the loopback or shared memory.
///
/// ```
/// use courser::Server;
/// use courser::introspection::{Introspect, IntrospectionClient};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_introspection(Introspect::new())?;
/// let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// let client = IntrospectionClient::connect(&uri).await?;
/// assert!(client.list().await?.contains("courser.Introspection"));
/// # Ok(()) })
/// # }
/// ```
#[derive(Clone)]
pub struct Introspect {
    allows: Arc<dyn Fn(&Peer) -> bool + Send + Sync>,
}

impl fmt::Debug for Introspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introspect").finish_non_exhaustive()
    }
}

impl Default for Introspect {
    fn default() -> Self {
        Introspect::new()
    }
}

/// Returns whether a peer is on the same machine: peers without a socket's address use its memory.
fn is_local(peer: &Peer) -> bool {
    peer.addr().to_socket().is_none_or(|socket| socket.ip().to_canonical().is_loopback())
}

impl Introspect {
    /// For clients of the same machine, over shared memory or a loopback address. A server that is bound
    /// to another address only has no such address: it allows its own machine by [`Introspect::allow`].
    pub fn new() -> Self {
        Introspect { allows: Arc::new(is_local) }
    }

    /// For the clients that a function allows, in place of those of the same machine. Addresses are those
    /// of packets, which a network without protection does not prove.
    #[must_use]
    pub fn allow(self, allows: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        Introspect { allows: Arc::new(allows) }
    }

    fn check(&self, cx: &CallContext) -> Result<(), String> {
        let allowed = cx.peer().is_some_and(|peer| (self.allows)(&peer));
        if allowed { Ok(()) } else { Err(DENIED.to_owned()) }
    }
}

/// The statistics of a server at a moment.
struct Snapshot {
    endpoints: u64,
    server: Option<ServerStats>,
    handlers: HandlerStats,
    services: ServiceStats,
    protocol: EndpointStats,
    methods: Vec<MethodStats>,
}

impl Snapshot {
    fn of_server(handle: &ServerHandle, all: &[EndpointStats]) -> Self {
        let server = handle.stats();
        let mut protocol = EndpointStats::default();
        all.iter().for_each(|endpoint| protocol.merge(endpoint));
        Snapshot {
            endpoints: all.len() as u64,
            handlers: server.handlers,
            server: Some(server),
            services: handle.service_stats(),
            protocol,
            methods: handle.method_stats(),
        }
    }

    fn json(&self) -> String {
        let methods = self.methods.iter().map(|stats| {
            let object = Object::new().text("service", stats.service).text("method", stats.method);
            object.stats(stats).object("latency", Object::new().stats(&stats.latency))
        });
        let mut all = Object::new()
            .number("format", Some(FORMAT))
            .text("version", env!("CARGO_PKG_VERSION"))
            .number("endpoints", Some(self.endpoints));
        if let Some(server) = &self.server {
            all = all.object("server", Object::new().stats(server));
        }
        all.object("handlers", Object::new().stats(&self.handlers))
            .object("services", Object::new().stats(&self.services))
            .object("protocol", Object::new().stats(&self.protocol))
            .list("methods", methods)
            .end()
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        if let Some(server) = &self.server {
            metrics.add(&[], server);
        }
        metrics.add(&[], &self.handlers);
        metrics.add(&[], &self.services);
        metrics.add(&[], &self.protocol);
        metrics.add_methods("server", &self.methods);
        metrics
    }
}

impl ServerHandle {
    /// The statistics of the server as OpenMetrics text: its counters, those of its endpoints together, and
    /// those of each method. Blocks its thread as [`ServerHandle::endpoint_stats`] does.
    pub fn metrics(&self) -> Metrics {
        Snapshot::of_server(self, &self.endpoint_stats()).metrics()
    }
}

impl Serving {
    /// The statistics as OpenMetrics text. This makes a server scrapeable over HTTP:
    ///
    /// ```no_run
    /// # use courser::metrics::Metrics;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::{Read, Write};
    ///
    /// let serving = courser::Server::bind("udp://0.0.0.0:31850")?.serve()?;
    /// let (http, handle) = (std::net::TcpListener::bind("127.0.0.1:9100")?, serving.handle());
    /// std::thread::spawn(move || {
    ///     for mut stream in http.incoming().flatten() {
    ///         let _ = stream.set_read_timeout(Some(std::time::Duration::from_secs(1)));
    ///         let _ = stream.read(&mut [0; 4096]);
    ///         let (kind, text) = (Metrics::CONTENT_TYPE, handle.metrics().text());
    ///         let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\n\r\n{text}");
    ///     }
    /// });
    /// # serving.wait()?;
    /// # Ok(()) }
    /// ```
    pub fn metrics(&self) -> Metrics {
        self.handle().metrics()
    }
}

/// The kind of a method in lists.
fn kind_name(kind: MethodKind) -> &'static str {
    match kind {
        MethodKind::Unary => "unary",
        MethodKind::OneWay => "one-way",
        MethodKind::ServerStream => "server-stream",
        MethodKind::ClientStream => "client-stream",
        MethodKind::BothStreams => "both-streams",
    }
}

/// The services as JSON.
fn list(services: &Services) -> String {
    let service = |info: ServiceInfo| {
        let methods = info.methods.iter().zip(info.shapes()).map(|(method, shape)| {
            Object::new()
                .text("name", method.name)
                .text("kind", kind_name(shape.kind()))
                .text("arguments", &shape.arguments().to_string())
                .text("sent", &shape.sent().to_string())
                .text("value", &shape.value().to_string())
                .text("error", &shape.error().to_string())
                .text("fingerprint", &format!("{:016x}", shape.fingerprint()))
        });
        Object::new()
            .text("name", info.name)
            .text("codec", info.codec)
            .text("fingerprint", &format!("{:016x}", info.fingerprint()))
            .list("methods", methods)
    };
    let services = services.list().into_iter().map(service);
    Object::new().number("format", Some(FORMAT)).list("services", services).end()
}

/// The service of a [`Server`].
struct OfServer {
    access: Introspect,
    handle: ServerHandle,
    services: Services,
}

impl OfServer {
    async fn snapshot(&self) -> Snapshot {
        let all = self.handle.fresh_endpoint_stats().await;
        Snapshot::of_server(&self.handle, &all)
    }
}

impl Introspection for OfServer {
    async fn stat(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(self.snapshot().await.json())
    }
    async fn metrics(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(self.snapshot().await.metrics().text())
    }
    async fn list(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(list(&self.services))
    }
}

/// The service of an endpoint.
struct OfEndpoint {
    access: Introspect,
    services: Services,
    lender: Lender,
}

impl OfEndpoint {
    fn snapshot(&self) -> Snapshot {
        let read = lent::try_with(&self.lender, |core| (core.handled, core.proto.stats().clone()));
        let (handlers, protocol) = read.unwrap_or_default();
        let (services, methods) = (self.services.stats(), self.services.method_stats());
        Snapshot { endpoints: 1, server: None, handlers, services, protocol, methods }
    }
}

impl LocalIntrospection for OfEndpoint {
    async fn stat(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(self.snapshot().json())
    }
    async fn metrics(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(self.snapshot().metrics().text())
    }
    async fn list(&self, cx: CallContext) -> Result<String, String> {
        self.access.check(&cx)?;
        Ok(list(&self.services))
    }
}

impl Server {
    /// Adds the standard service for programs that watch the server: `courser stat` and `courser list`.
    /// Only clients of the same machine are answered, unless [`Introspect::allow`] allows others.
    ///
    /// # Errors
    /// It was added before.
    pub fn add_introspection(mut self, access: Introspect) -> Result<Self, RegisterError> {
        let services = crate::service::Registry::services(&self).clone();
        let server = OfServer { access, handle: self.handle(), services };
        IntrospectionServer::new(server).register(&mut self)?;
        Ok(self)
    }
}

impl<T: Transport> Rpc<T> {
    /// [`Server::add_introspection`] for one endpoint, whose own counters are the statistics.
    ///
    /// # Errors
    /// It was added before.
    pub fn add_introspection(&mut self, access: Introspect) -> Result<(), RegisterError> {
        let services = self.handlers.services.clone();
        let server = OfEndpoint { access, services, lender: self.core.lender.clone() };
        IntrospectionServer::local(server).register_local(self)
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Addr;

    use super::*;

    #[test]
    fn clients_are_local_by_a_loopback_address_or_without_one() {
        let is_local = |ip: &str| {
            let socket = std::net::SocketAddr::new(ip.parse().unwrap(), 31_850);
            is_local(&Peer::new(Addr::from_socket(socket)))
        };
        for ip in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert!(is_local(ip), "{ip}");
        }
        for ip in ["10.0.0.5", "0.0.0.0", "::ffff:10.0.0.5", "2001:db8::1", "::"] {
            assert!(!is_local(ip), "{ip}");
        }
    }

    #[test]
    fn each_kind_of_method_has_its_name_in_lists() {
        use MethodKind::{BothStreams, ClientStream, OneWay, ServerStream, Unary};
        let names = [Unary, OneWay, ServerStream, ClientStream, BothStreams].map(kind_name);
        let expected = ["unary", "one-way", "server-stream", "client-stream", "both-streams"];
        assert_eq!(names, expected);
    }
}
