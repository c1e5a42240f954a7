//! A node, and a client for the command line.
//!
//! ```sh
//! cargo run -p courser-example-openraft serve 1 udp://127.0.0.1:31851 --first
//! cargo run -p courser-example-openraft serve 2 udp://127.0.0.1:31852
//! cargo run -p courser-example-openraft serve 3 udp://127.0.0.1:31853
//! cargo run -p courser-example-openraft add udp://127.0.0.1:31851 2 udp://127.0.0.1:31852
//! cargo run -p courser-example-openraft add udp://127.0.0.1:31851 3 udp://127.0.0.1:31853
//! cargo run -p courser-example-openraft put udp://127.0.0.1:31851 apple green
//! cargo run -p courser-example-openraft get udp://127.0.0.1:31851 apple
//! ```

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use courser::Server;
use courser_example_openraft::network::NodeClient;
use courser_example_openraft::{Command, config, start};
use openraft::BasicNode;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", id, uri] => serve(id.parse()?, uri, false).await,
        ["serve", id, uri, "--first"] => serve(id.parse()?, uri, true).await,
        ["add", at, id, uri] => {
            let node = NodeClient::connect(at).await?;
            Ok(node.add(id.parse()?, (*uri).to_owned()).await?)
        }
        ["put", at, key, value] => {
            let (key, value) = ((*key).to_owned(), (*value).to_owned());
            print(NodeClient::connect(at).await?.write(Command::Put { key, value }).await?)
        }
        ["delete", at, key] => {
            let key = (*key).to_owned();
            print(NodeClient::connect(at).await?.write(Command::Delete { key }).await?)
        }
        ["get", at, key] => print(NodeClient::connect(at).await?.read((*key).to_owned()).await?),
        _ => bail!(
            "usage: serve ID URI [--first] | add LEADER ID URI | put LEADER KEY VALUE \
             | get LEADER KEY | delete LEADER KEY"
        ),
    }
}

fn print(value: Option<String>) -> Result<()> {
    println!("{}", value.as_deref().unwrap_or("(none)"));
    Ok(())
}

async fn serve(id: u64, uri: &str, is_first: bool) -> Result<()> {
    let server = Server::bind(uri)?;
    let uri = server.local_uri();
    let node = start(id, server, config()).await?;
    if is_first {
        node.raft.initialize(BTreeMap::from([(id, BasicNode::new(uri.clone()))])).await?;
    }
    println!("node {id} serves {uri}");
    node.serving.await?;
    Ok(())
}
