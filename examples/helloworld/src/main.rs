//! gRPC's helloworld: a server, and a client that calls it.
//!
//! ```sh
//! cargo run -p courser-example-helloworld serve udp://127.0.0.1:31850
//! cargo run -p courser-example-helloworld hello udp://127.0.0.1:31850 Tonic
//! ```

use anyhow::{Result, bail};
use courser::Server;
use courser_example_helloworld::MyGreeter;
use courser_example_helloworld::helloworld::{GreeterClient, GreeterServer, HelloRequest};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", uri] => {
            let server = Server::bind(uri)?.add_service(GreeterServer::new(MyGreeter))?;
            let (uri, serving) = (server.local_uri(), server.serve()?);
            println!("serving {uri}");
            serving.await?;
        }
        ["hello", uri, name] => {
            let client = GreeterClient::connect(uri).await?;
            let reply = client.say_hello(HelloRequest { name: (*name).to_owned() }).await?;
            println!("{}", reply.message);
        }
        _ => bail!("usage: helloworld serve URI | helloworld hello URI NAME"),
    }
    Ok(())
}
