//! The key-value service with Courser: service, server and client.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Result;
use courser::Server;
use courser::service::{RpcError, Stream};
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

const MAX_VALUE: usize = 64 << 10;

#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum KvError {
    #[error("not found")]
    NotFound,
    #[error("too large")]
    TooLarge,
}

#[courser::service(codec = Postcard)]
pub trait Kv {
    async fn get(&self, key: String) -> Result<Vec<u8>, KvError>;
    async fn put(&self, key: String, value: Vec<u8>) -> Result<(), KvError>;
    fn scan(&self, from: String) -> impl Stream<Item = (String, Vec<u8>)>;
}

#[derive(Default)]
struct Store(Mutex<BTreeMap<String, Vec<u8>>>);

impl Kv for Store {
    async fn get(&self, key: String) -> Result<Vec<u8>, KvError> {
        self.0.lock().unwrap().get(&key).cloned().ok_or(KvError::NotFound)
    }

    async fn put(&self, key: String, value: Vec<u8>) -> Result<(), KvError> {
        if value.len() > MAX_VALUE {
            return Err(KvError::TooLarge);
        }
        self.0.lock().unwrap().insert(key, value);
        Ok(())
    }

    fn scan(&self, from: String) -> impl Stream<Item = (String, Vec<u8>)> {
        let entries = self.0.lock().unwrap();
        let entries: Vec<_> = entries.range(from..).map(|(k, v)| (k.clone(), v.clone())).collect();
        stream::iter(entries)
    }
}

pub async fn serve(address: &str, ready: impl FnOnce(String)) -> Result<()> {
    let server = Server::bind(address)?.on_tokio(Handle::current());
    let server = server.add_service(KvServer::new(Store::default()))?;
    let (uri, serving) = (server.local_uri(), server.serve()?);
    ready(uri);
    serving.await?;
    Ok(())
}

pub async fn client(uri: &str) -> Result<()> {
    let kv = KvClient::connect(uri).await?;
    for (key, value) in [("apple", "green"), ("banana", "yellow"), ("cherry", "red")] {
        kv.put(key.into(), value.into()).await?;
    }
    let value = kv.get("banana".into()).await?;
    println!("banana is {}", String::from_utf8_lossy(&value));
    match kv.get("durian".into()).await {
        Err(RpcError::Service(KvError::NotFound)) => println!("there is no durian"),
        other => println!("durian: {other:?}"),
    }
    match kv.put("melon".into(), vec![0; MAX_VALUE + 1]).await {
        Err(RpcError::Service(KvError::TooLarge)) => println!("a melon is too large"),
        other => println!("melon: {other:?}"),
    }
    let mut entries = kv.scan("b".into()).await?;
    while let Some(entry) = entries.next().await {
        let (key, value) = entry?;
        println!("scan: {key} is {}", String::from_utf8_lossy(&value));
    }
    Ok(())
}
