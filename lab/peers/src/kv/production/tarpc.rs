//! The key-value service in production with tarpc: service, server and client.
//!
//! tarpc has no streams, so a scan is read in pages. It has no metadata, so the token is a part of
//! each request; a trace and a deadline are in its contexts. Its clients do not connect again. With
//! bincode the kinds of its server errors arrive as other ones, so clients compare their texts.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use futures::StreamExt;
use futures::lock::Mutex;
use serde::{Deserialize, Serialize};
use tarpc::client::{self, Channel, Config, RpcError, stub::Stub};
use tarpc::context::{self, Context};
use tarpc::serde_transport::tcp;
use tarpc::server::{BaseChannel, Channel as _, Serve};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{RequestName, ServerError};
use tokio::time::timeout_at;
use tower::retry::backoff::{Backoff, ExponentialBackoffMaker, MakeBackoff};
use tower::util::rng::HasherRng;

use super::{ATTEMPTS, FIRST_PAUSE, MOST_PAUSE, Store, TOKEN, deadline, trace_id};

const MAX_VALUE: usize = 64 << 10;
const PAGE: u32 = 256;
const BAD_TOKEN: &str = "calls need a valid token";
const BUSY: &str = "the store is busy";

#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum KvError {
    #[error("not found")]
    NotFound,
    #[error("too large")]
    TooLarge,
}

#[tarpc::service(derive = [Clone, Serialize, Deserialize])]
pub trait Kv {
    async fn get(key: String) -> Result<Vec<u8>, KvError>;
    async fn put(key: String, value: Vec<u8>) -> Result<(), KvError>;
    async fn scan(from: String, limit: u32) -> Vec<(String, Vec<u8>)>;
}

#[derive(Serialize, Deserialize)]
struct Signed {
    token: String,
    request: KvRequest,
}

impl RequestName for Signed {
    fn name(&self) -> &str {
        self.request.name()
    }
}

#[derive(Clone)]
struct Gate(Service);

impl Serve for Gate {
    type Req = Signed;
    type Resp = KvResponse;

    async fn serve(self, cx: Context, signed: Signed) -> Result<KvResponse, ServerError> {
        if signed.token != TOKEN {
            return Err(ServerError::new(ErrorKind::PermissionDenied, BAD_TOKEN.into()));
        }
        if self.0.store.is_busy() {
            return Err(ServerError::new(ErrorKind::WouldBlock, BUSY.into()));
        }
        self.0.serve().serve(cx, signed.request).await
    }
}

#[derive(Clone)]
struct Service {
    store: Arc<Store>,
    peer: SocketAddr,
}

impl Service {
    fn log(&self, method: &str, cx: &Context) {
        let left = cx.deadline.saturating_duration_since(Instant::now());
        self.store.log(method, Some(&cx.trace_id().to_string()), Some(self.peer), Some(left));
    }
}

impl Kv for Service {
    async fn get(self, cx: Context, key: String) -> Result<Vec<u8>, KvError> {
        self.log("get", &cx);
        self.store.get(&key).await.ok_or(KvError::NotFound)
    }

    async fn put(self, cx: Context, key: String, value: Vec<u8>) -> Result<(), KvError> {
        self.log("put", &cx);
        if value.len() > MAX_VALUE {
            return Err(KvError::TooLarge);
        }
        self.store.put(key, value);
        Ok(())
    }

    async fn scan(self, cx: Context, from: String, limit: u32) -> Vec<(String, Vec<u8>)> {
        self.log("scan", &cx);
        self.store.scan(from, limit as usize)
    }
}

pub async fn serve(address: &str, store: Arc<Store>, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let mut incoming = tcp::listen(address, Bincode::default).await?;
    ready(incoming.local_addr());
    while let Some(connection) = incoming.next().await {
        let connection = connection?;
        connection.get_ref().set_nodelay(true)?;
        let gate = Gate(Service { store: store.clone(), peer: connection.peer_addr()? });
        let requests = BaseChannel::with_defaults(connection).execute(gate);
        tokio::spawn(requests.for_each(|request| async {
            tokio::spawn(request);
        }));
    }
    Ok(())
}

struct Connection {
    address: String,
    token: &'static str,
    channel: Mutex<Option<Channel<Signed, KvResponse>>>,
}

impl Connection {
    async fn channel(&self) -> io::Result<Channel<Signed, KvResponse>> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let connection = tcp::connect(&self.address, Bincode::default).await?;
        connection.get_ref().set_nodelay(true)?;
        Ok(channel.insert(client::new(Config::default(), connection).spawn()).clone())
    }

    async fn attempt(&self, cx: Context, request: KvRequest) -> Result<KvResponse, RpcError> {
        let channel = self.channel().await.map_err(|e| RpcError::Send(Box::new(e)))?;
        let result = channel.call(cx, Signed { token: self.token.into(), request }).await;
        if result.as_ref().is_err_and(is_lost) {
            *self.channel.lock().await = None;
        }
        result
    }

    async fn attempts(&self, cx: Context, request: KvRequest) -> Result<KvResponse, RpcError> {
        let is_idempotent = matches!(request, KvRequest::Get { .. } | KvRequest::Scan { .. });
        let pauses = ExponentialBackoffMaker::new(FIRST_PAUSE, MOST_PAUSE, 0.5, HasherRng::new());
        let mut pauses = pauses.map_err(|e| RpcError::Send(Box::new(e)))?.make_backoff();
        for _ in 1..ATTEMPTS {
            match self.attempt(cx, request.clone()).await {
                Err(RpcError::Server(e)) if e.detail == BUSY => pauses.next_backoff().await,
                Err(e) if is_lost(&e) && is_idempotent => pauses.next_backoff().await,
                ended => return ended,
            }
        }
        self.attempt(cx, request).await
    }
}

fn is_lost(error: &RpcError) -> bool {
    matches!(error, RpcError::Shutdown | RpcError::Send(_) | RpcError::Channel(_))
}

impl Stub for Connection {
    type Req = KvRequest;
    type Resp = KvResponse;

    async fn call(&self, mut cx: Context, request: KvRequest) -> Result<KvResponse, RpcError> {
        cx.deadline = cx.deadline.min(Instant::now() + deadline());
        cx.trace_context.trace_id = trace_id().into();
        let ended = timeout_at(cx.deadline.into(), self.attempts(cx, request)).await;
        ended.unwrap_or(Err(RpcError::DeadlineExceeded))
    }
}

fn connect(address: &str, token: &'static str) -> KvClient<Connection> {
    Connection { address: address.into(), token, channel: Mutex::default() }.into()
}

pub async fn client(address: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
    let kv = connect(address, TOKEN);
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
        let Some((last, _)) = page.last() else { break };
        from = last.clone() + "\0";
        for (key, value) in page {
            println!("scan: {key} is {}", String::from_utf8_lossy(&value));
        }
    }
    match kv.get(context::current(), "slow".into()).await {
        Err(RpcError::DeadlineExceeded) => println!("a slow get ends by its deadline"),
        other => println!("slow: {other:?}"),
    }
    let stranger = connect(address, "wrong");
    match stranger.get(context::current(), "banana".into()).await {
        Err(RpcError::Server(e)) if e.detail == BAD_TOKEN => println!("a wrong token is refused"),
        other => println!("wrong token: {other:?}"),
    }
    restart()?;
    let value = kv.get(context::current(), "banana".into()).await??;
    println!("banana is {} after a restart", String::from_utf8_lossy(&value));
    Ok(())
}
