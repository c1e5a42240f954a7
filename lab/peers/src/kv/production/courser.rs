//! The key-value service in production with Courser: service, server and client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use courser::service::{
    CallContext, ClientMiddleware, Denied, IncomingCall, OutgoingCall, RetryPolicy, RpcError,
    ServerMiddleware, Stream,
};
use courser::{CallError, CallFailure, Server};
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::{ATTEMPTS, FIRST_PAUSE, MOST_PAUSE, Store, TOKEN, deadline, trace};

const MAX_VALUE: usize = 64 << 10;

#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum KvError {
    #[error("not found")]
    NotFound,
    #[error("too large")]
    TooLarge,
}

#[courser::service]
pub trait Kv {
    #[idempotent]
    async fn get(&self, cx: CallContext, key: String) -> Result<Vec<u8>, KvError>;
    async fn put(&self, cx: CallContext, key: String, value: Vec<u8>) -> Result<(), KvError>;
    fn scan(&self, cx: CallContext, from: String) -> impl Stream<Item = (String, Vec<u8>)>;
}

struct Gate(Arc<Store>);

impl ServerMiddleware for Gate {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        if call.metadata().text("token") != Some(TOKEN) {
            return Err(Denied::unauthenticated("calls need a valid token"));
        }
        if self.0.is_busy() {
            return Err(Denied::too_many("the store is busy", Duration::ZERO));
        }
        Ok(())
    }
}

struct Service(Arc<Store>);

impl Service {
    fn log(&self, cx: &CallContext) {
        let peer = cx.peer().and_then(|peer| peer.addr().to_socket());
        self.0.log(cx.method(), cx.metadata().text("trace-id"), peer, cx.time_left());
    }
}

impl Kv for Service {
    async fn get(&self, cx: CallContext, key: String) -> Result<Vec<u8>, KvError> {
        self.log(&cx);
        self.0.get(&key).await.ok_or(KvError::NotFound)
    }

    async fn put(&self, cx: CallContext, key: String, value: Vec<u8>) -> Result<(), KvError> {
        self.log(&cx);
        if value.len() > MAX_VALUE {
            return Err(KvError::TooLarge);
        }
        self.0.put(key, value);
        Ok(())
    }

    fn scan(&self, cx: CallContext, from: String) -> impl Stream<Item = (String, Vec<u8>)> {
        self.log(&cx);
        stream::iter(self.0.scan(from, usize::MAX))
    }
}

pub async fn serve(address: &str, store: Arc<Store>, ready: impl FnOnce(String)) -> Result<()> {
    let server = Server::bind(address)?.on_tokio(Handle::current()).middleware(Gate(store.clone()));
    let server = server.add_service(KvServer::new(Service(store)))?;
    let (uri, serving) = (server.local_uri(), server.serve()?);
    ready(uri);
    serving.await?;
    Ok(())
}

struct Outgoing(&'static str);

impl ClientMiddleware for Outgoing {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied> {
        call.set_deadline(call.deadline().unwrap_or(deadline()));
        let added = call.add_metadata("token", self.0);
        let added = added.and_then(|()| call.add_metadata("trace-id", trace()));
        added.map_err(|e| Denied::new(e.to_string()))
    }
}

pub async fn connect(uri: &str, token: &'static str) -> Result<KvClient> {
    let policy = RetryPolicy::default().attempts(ATTEMPTS).pauses(FIRST_PAUSE, MOST_PAUSE);
    Ok(KvClient::connect(uri).await?.with_middleware(Outgoing(token)).with_retries(policy))
}

pub async fn client(uri: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
    let kv = connect(uri, TOKEN).await?;
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
    match kv.get("slow".into()).await {
        Err(RpcError::Call(CallFailure::Failed(CallError::DeadlineExceeded(_)))) => {
            println!("a slow get ends by its deadline");
        }
        other => println!("slow: {other:?}"),
    }
    match connect(uri, "wrong").await?.get("banana".into()).await {
        Err(RpcError::Unauthenticated(_)) => println!("a wrong token is refused"),
        other => println!("wrong token: {other:?}"),
    }
    restart()?;
    let value = kv.get("banana".into()).await?;
    println!("banana is {} after a restart", String::from_utf8_lossy(&value));
    Ok(())
}
