//! A key-value server, and a client for the command line.
//!
//! ```sh
//! cargo run -p courser-example-kv serve udp://127.0.0.1:31850
//! cargo run -p courser-example-kv put udp://127.0.0.1:31850 apple green
//! cargo run -p courser-example-kv get udp://127.0.0.1:31850 apple
//! cargo run -p courser-example-kv scan udp://127.0.0.1:31850 a
//! cargo run -p courser-example-kv watch udp://127.0.0.1:31850
//! cargo run -p courser-example-kv wait udp://127.0.0.1:31850 apple
//! ```

use std::time::Duration;

use anyhow::{Result, bail};
use courser::service::{MidStreamError, RpcError};
use courser::{Executed, Server};
use courser_example_kv::{Change, KvClient, KvError, KvServer, Store};
use tokio::runtime::Handle;

/// After this time a call ends with an error. Its handler is dropped then too.
const DEADLINE: Duration = Duration::from_secs(1);

/// Time for calls and streams in progress when the server is interrupted.
const GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", uri] => serve(uri).await,
        ["get", uri, key] => get(&KvClient::connect(uri).await?, key).await,
        ["put", uri, key, value] => put(&KvClient::connect(uri).await?, key, value).await,
        ["delete", uri, key] => {
            let kv = KvClient::connect(uri).await?;
            Ok(kv.delete((*key).to_owned()).deadline(DEADLINE).await?)
        }
        ["scan", uri, from] => scan(&KvClient::connect(uri).await?, from).await,
        ["watch", uri] => watch(&KvClient::connect(uri).await?).await,
        ["wait", uri, key] => {
            let value = KvClient::connect(uri).await?.wait_for((*key).to_owned()).await?;
            println!("{}", String::from_utf8_lossy(&value));
            Ok(())
        }
        _ => bail!(
            "usage: kv serve URI | get URI KEY | put URI KEY VALUE | delete URI KEY | scan URI FROM \
             | watch URI | wait URI KEY"
        ),
    }
}

async fn serve(uri: &str) -> Result<()> {
    // Methods that end without waiting run where requests arrive, after their first calls. A scan, which waits for its
    // client, becomes a task of tokio.
    let server = Server::bind(uri)?.on_tokio(Handle::current());
    let store = Store::default();
    // Calls that wait learn from it that the server shuts down. Streams end without their handlers.
    store.drain_with(server.drain_token());
    let server = server.add_service(KvServer::new(store))?;
    let (uri, serving) = (server.local_uri(), server.serve()?);
    let handle = serving.handle();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            handle.shutdown(GRACE);
        }
    });
    println!("serving {uri}");
    let left = serving.await?;
    eprintln!("ended, {} requests were not answered", left.executing);
    Ok(())
}

async fn get(kv: &KvClient, key: &str) -> Result<()> {
    match kv.get(key.to_owned()).deadline(DEADLINE).await {
        Ok(value) => println!("{}", String::from_utf8_lossy(&value)),
        // The application's own error, as the handler returned it.
        Err(RpcError::Service(KvError::NotFound)) => println!("there is no {key}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn put(kv: &KvClient, key: &str, value: &str) -> Result<()> {
    loop {
        match kv.put(key.to_owned(), value.into()).deadline(DEADLINE).await {
            Ok(()) => return Ok(()),
            // Whether the handler ran is known. If it has not, repeating the call is always right;
            // this one could be repeated in any case.
            Err(error) if error.executed() == Executed::Never => {
                eprintln!("again: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn scan(kv: &KvClient, from: &str) -> Result<()> {
    let mut entries = kv.scan(from.to_owned()).await?;
    while let Some(entry) = entries.next().await {
        let (key, value) = entry?;
        println!("{key} {}", String::from_utf8_lossy(&value));
    }
    Ok(())
}

async fn watch(kv: &KvClient) -> Result<()> {
    let mut changes = kv.watch().await?;
    while let Some(change) = changes.next().await {
        match change {
            Ok(Change::Put(key, value)) => println!("{key} {}", String::from_utf8_lossy(&value)),
            Ok(Change::Deleted(key)) => println!("{key} was deleted"),
            Ok(Change::Missed(number)) => println!("{number} changes are missed"),
            // Nothing failed: a service with several servers would watch at the next one.
            Err(RpcError::MidStream(MidStreamError::ShuttingDown { items })) => {
                println!("the server shuts down after {items} changes");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
