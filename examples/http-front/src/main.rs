//! An HTTP server in front of a key-value server.
//!
//! ```sh
//! cargo run -p courser-example-kv serve udp://127.0.0.1:31850
//! cargo run -p courser-example-http-front 127.0.0.1:8080 udp://127.0.0.1:31850
//! curl -X PUT --data green http://127.0.0.1:8080/kv/apple
//! curl -H 'x-deadline-ms: 5' http://127.0.0.1:8080/kv/apple
//! curl -N http://127.0.0.1:8080/kv?from=a
//! ```

use anyhow::{Context, Result};
use courser_example_http_front::routes;
use courser_example_kv::KvClient;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().context("usage: http-front ADDRESS URI");
    let (address, uri) = (next()?, next()?);
    // One client for all requests: clones of its handle share its endpoint's thread and sessions.
    // After a lost connection the next call connects again.
    let kv = KvClient::connect(&uri).await?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, routes(kv)).await?;
    Ok(())
}
