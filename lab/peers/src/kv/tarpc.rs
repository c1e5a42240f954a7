//! The key-value service with tarpc: service, server and client.
//!
//! tarpc has no streams, so a scan is read in pages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tarpc::client::Config;
use tarpc::context::{self, Context};
use tarpc::serde_transport::tcp;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;

const MAX_VALUE: usize = 64 << 10;
pub const PAGE: u32 = 256;

#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum KvError {
    #[error("not found")]
    NotFound,
    #[error("too large")]
    TooLarge,
}

#[tarpc::service]
pub trait Kv {
    async fn get(key: String) -> Result<Vec<u8>, KvError>;
    async fn put(key: String, value: Vec<u8>) -> Result<(), KvError>;
    async fn scan(from: String, limit: u32) -> Vec<(String, Vec<u8>)>;
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Kv for Store {
    async fn get(self, _: Context, key: String) -> Result<Vec<u8>, KvError> {
        self.0.lock().unwrap().get(&key).cloned().ok_or(KvError::NotFound)
    }

    async fn put(self, _: Context, key: String, value: Vec<u8>) -> Result<(), KvError> {
        if value.len() > MAX_VALUE {
            return Err(KvError::TooLarge);
        }
        self.0.lock().unwrap().insert(key, value);
        Ok(())
    }

    async fn scan(self, _: Context, from: String, limit: u32) -> Vec<(String, Vec<u8>)> {
        let entries = self.0.lock().unwrap();
        let page = entries.range(from..).take(limit as usize);
        page.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

pub async fn serve(address: &str, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let mut incoming = tcp::listen(address, Bincode::default).await?;
    ready(incoming.local_addr());
    let store = Store::default();
    while let Some(connection) = incoming.next().await {
        let connection = connection?;
        connection.get_ref().set_nodelay(true)?;
        let requests = BaseChannel::with_defaults(connection).execute(store.clone().serve());
        tokio::spawn(requests.for_each(|request| async {
            tokio::spawn(request);
        }));
    }
    Ok(())
}

pub async fn connect(address: &str) -> Result<KvClient> {
    let connection = tcp::connect(address, Bincode::default).await?;
    connection.get_ref().set_nodelay(true)?;
    Ok(KvClient::new(Config::default(), connection).spawn())
}

pub async fn client(address: &str) -> Result<()> {
    let kv = connect(address).await?;
    for (key, value) in [("apple", "green"), ("banana", "yellow"), ("cherry", "red")] {
        kv.put(context::current(), key.into(), value.into()).await??;
    }
    let value = kv.get(context::current(), "banana".into()).await??;
    println!("banana is {}", String::from_utf8_lossy(&value));
    match kv.get(context::current(), "durian".into()).await? {
        Err(KvError::NotFound) => println!("there is no durian"),
        other => println!("durian: {other:?}"),
    }
    match kv.put(context::current(), "melon".into(), vec![0; MAX_VALUE + 1]).await? {
        Err(KvError::TooLarge) => println!("a melon is too large"),
        other => println!("melon: {other:?}"),
    }
    let mut from = "b".to_owned();
    loop {
        let page = kv.scan(context::current(), from, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        from = last.clone() + "\0";
        for (key, value) in page {
            println!("scan: {key} is {}", String::from_utf8_lossy(&value));
        }
    }
}
