//! The service that the examples in Courser's documentation call, and the servers and endpoints beside
//! which they run. A crate, so that it is compiled once and not in each example.

use std::error::Error;

use courser::service::{CallContext, Incoming, Stream};
use courser::{Local, Nexus, Rpc, Server, Serving};
use futures::StreamExt;

/// The result of an example.
pub type Done = Result<(), Box<dyn Error>>;

/// The request type of a handler without a service, which returns its request.
pub const ECHO: u16 = 1;

/// A store of texts.
#[courser::service]
pub trait Store {
    /// The text of a key, or an error that names it.
    #[idempotent]
    async fn get(&self, key: String) -> Result<String, String>;
    /// The number of bytes of a key.
    async fn len(&self, key: String) -> u64;
    /// The key will be read soon.
    #[oneway]
    async fn hint(&self, key: String);
    /// The value of "tenant" in the metadata. The answer has the key "served-by".
    async fn tenant(&self, cx: CallContext) -> String;
    /// All keys, beginning with this one.
    fn list(&self, from: String) -> impl Stream<Item = Result<String, String>>;
    /// Counts keys.
    async fn load(&self, keys: Incoming<String>) -> u64;
    /// Returns each key with a "!".
    fn follow(&self, keys: Incoming<String>) -> impl Stream<Item = String>;
}

/// Has the keys "apple" and "pear".
#[derive(Debug)]
pub struct Texts;

impl Store for Texts {
    async fn get(&self, key: String) -> Result<String, String> {
        match key.as_str() {
            "apple" | "pear" => Ok(format!("about {key}")),
            _ => Err(format!("no {key}")),
        }
    }
    async fn len(&self, key: String) -> u64 {
        key.len() as u64
    }
    async fn hint(&self, _: String) {}
    async fn tenant(&self, cx: CallContext) -> String {
        cx.respond_with("served-by", "texts-1").expect("a short pair");
        cx.metadata().text("tenant").unwrap_or("none").to_owned()
    }
    fn list(&self, from: String) -> impl Stream<Item = Result<String, String>> {
        let keys = ["apple", "pear"].into_iter().filter(move |key| *key >= from.as_str());
        futures::stream::iter(keys.map(|key| Ok(key.to_owned())))
    }
    async fn load(&self, keys: Incoming<String>) -> u64 {
        keys.count().await as u64
    }
    fn follow(&self, keys: Incoming<String>) -> impl Stream<Item = String> {
        keys.filter_map(|key| async { key.ok().map(|key| key + "!") })
    }
}

/// A server with the service and the handler.
///
/// # Errors
/// There is no address or no memory for it.
pub fn server() -> Result<Server, Box<dyn Error>> {
    let mut server = Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
    server.on(ECHO, |mut work| async move {
        let request = work.take().expect("it was not taken before");
        work.reply(request)
    });
    server.on_message(ECHO, |_| async {});
    Ok(server)
}

/// Runs an example beside such a server, whose address it gets.
///
/// # Errors
/// The error of the example, or of its server.
pub fn run(example: impl AsyncFnOnce(String) -> Done) -> Done {
    run_served(async |uri, _| example(uri).await)
}

/// [`run`] with the server too.
///
/// # Errors
/// The error of the example, or of its server.
pub fn run_served(example: impl AsyncFnOnce(String, Serving) -> Done) -> Done {
    let server = server()?;
    let uri = server.local_uri();
    futures::executor::block_on(example(uri, server.serve()?))
}

/// Runs an example on the thread of an endpoint, beside such a server.
///
/// # Errors
/// The error of the example, or of its server.
pub fn run_local(example: impl AsyncFnOnce(Local, String) -> Done) -> Done {
    let server = server()?;
    let (uri, _serving) = (server.local_uri(), server.serve()?);
    let mut rpc = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
    let local = rpc.local();
    rpc.block_on(example(local, uri))?
}

/// Runs an example with an endpoint, beside such a server.
///
/// # Errors
/// The error of the example, or of its server.
pub fn run_rpc(example: impl FnOnce(Rpc, String) -> Done) -> Done {
    let server = server()?;
    let (uri, _serving) = (server.local_uri(), server.serve()?);
    example(Nexus::bind("udp://127.0.0.1:0")?.endpoint()?, uri)
}
