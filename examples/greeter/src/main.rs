//! The first typed service: a server, and a client that calls it.
//!
//! ```sh
//! cargo run -p courser-example-greeter serve udp://127.0.0.1:31850
//! cargo run -p courser-example-greeter hello udp://127.0.0.1:31850 Ada
//! ```

use anyhow::{Result, bail};
use courser::Server;
use courser_example_greeter::{GreeterClient, GreeterServer, Polite};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", uri] => {
            let server = Server::bind(uri)?.add_service(GreeterServer::new(Polite))?;
            let (uri, serving) = (server.local_uri(), server.serve()?);
            println!("serving {uri}");
            serving.await?;
        }
        ["hello", uri, name] => {
            let greeter = GreeterClient::connect(uri).await?;
            println!("{}", greeter.hello((*name).to_owned()).await?);
        }
        _ => bail!("usage: greeter serve URI | greeter hello URI NAME"),
    }
    Ok(())
}
