//! The key-value service in production with tonic: server and client. The service is in
//! `proto/kv.proto`, and `build.rs` generates its code.
//!
//! tonic does not repeat calls. The layer of tower that does needs requests that can be cloned, which
//! those of a channel cannot, so a function repeats the calls of generated clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::stream::{self, Iter};
use tokio::time::timeout;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::service::{Interceptor, interceptor::InterceptedService};
use tonic::transport::{Channel, Endpoint, Server, server::TcpIncoming};
use tonic::{Code, Request, Response, Status};
use tower::retry::backoff::{Backoff, ExponentialBackoffMaker, MakeBackoff};
use tower::util::rng::HasherRng;

use super::{ATTEMPTS, FIRST_PAUSE, MOST_PAUSE, Store, TOKEN, deadline, trace};

mod proto {
    tonic::include_proto!("kv");
}
use proto::kv_client::KvClient;
use proto::kv_server::{Kv, KvServer};
use proto::{Entry, GetRequest, GetResponse, PutRequest, PutResponse, ScanRequest};

const MAX_VALUE: usize = 64 << 10;

fn gate(store: Arc<Store>) -> impl Interceptor + Clone {
    move |request: Request<()>| {
        if request.metadata().get("token").is_none_or(|token| token != TOKEN) {
            return Err(Status::unauthenticated("calls need a valid token"));
        }
        if store.is_busy() {
            return Err(Status::resource_exhausted("the store is busy"));
        }
        Ok(request)
    }
}

struct Service(Arc<Store>);

impl Service {
    fn log<T>(&self, method: &str, request: &Request<T>) {
        let metadata = request.metadata();
        let trace = metadata.get("trace-id").and_then(|trace| trace.to_str().ok());
        self.0.log(method, trace, request.remote_addr(), time_left(metadata));
    }
}

fn time_left(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (amount, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u32 = amount.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * amount)
}

#[tonic::async_trait]
impl Kv for Service {
    type ScanStream = Iter<std::vec::IntoIter<Result<Entry, Status>>>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.log("get", &request);
        match self.0.get(&request.into_inner().key).await {
            Some(value) => Ok(Response::new(GetResponse { value })),
            None => Err(Status::not_found("there is no such key")),
        }
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.log("put", &request);
        let PutRequest { key, value } = request.into_inner();
        if value.len() > MAX_VALUE {
            return Err(Status::out_of_range("the value is too large"));
        }
        self.0.put(key, value);
        Ok(Response::new(PutResponse {}))
    }

    async fn scan(
        &self,
        request: Request<ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        self.log("scan", &request);
        let entries = self.0.scan(request.into_inner().from, usize::MAX).into_iter();
        let entries: Vec<_> = entries.map(|(key, value)| Ok(Entry { key, value })).collect();
        Ok(Response::new(stream::iter(entries)))
    }
}

pub async fn serve(address: &str, store: Arc<Store>, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let incoming = TcpIncoming::bind(address.parse()?)?.with_nodelay(Some(true));
    ready(incoming.local_addr()?);
    let service = KvServer::with_interceptor(Service(store.clone()), gate(store));
    Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
}

#[derive(Clone)]
pub struct Outgoing(&'static str);

impl Interceptor for Outgoing {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !request.metadata().contains_key("grpc-timeout") {
            request.set_timeout(deadline());
        }
        let trace = trace().parse().map_err(|_| Status::internal("the trace is no metadata"))?;
        request.metadata_mut().insert("token", MetadataValue::from_static(self.0));
        request.metadata_mut().insert("trace-id", trace);
        Ok(request)
    }
}

type Client = KvClient<InterceptedService<Channel, Outgoing>>;

pub async fn connect(address: &str, token: &'static str) -> Result<Client> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    Ok(KvClient::with_interceptor(channel, Outgoing(token)))
}

async fn retried<T>(
    is_idempotent: bool,
    call: impl AsyncFn() -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    let pauses = ExponentialBackoffMaker::new(FIRST_PAUSE, MOST_PAUSE, 0.5, HasherRng::new());
    let mut pauses = pauses.map_err(|e| Status::internal(e.to_string()))?.make_backoff();
    let attempts = async {
        for _ in 1..ATTEMPTS {
            match call().await {
                Err(e) if e.code() == Code::ResourceExhausted => pauses.next_backoff().await,
                Err(e) if e.code() == Code::Unavailable && is_idempotent => {
                    pauses.next_backoff().await;
                }
                ended => return ended,
            }
        }
        call().await
    };
    let late = |_| Status::deadline_exceeded("the deadline of the call has passed");
    timeout(deadline(), attempts).await.map_err(late)?.map(Response::into_inner)
}

pub async fn client(address: &str, restart: impl FnOnce() -> Result<()>) -> Result<()> {
    let kv = connect(address, TOKEN).await?;
    for (key, value) in [("apple", "green"), ("banana", "yellow"), ("cherry", "red")] {
        let entry = PutRequest { key: key.into(), value: value.into() };
        retried(false, async || kv.clone().put(entry.clone()).await).await?;
    }
    let banana = GetRequest { key: "banana".into() };
    let value = retried(true, async || kv.clone().get(banana.clone()).await).await?.value;
    println!("banana is {}", String::from_utf8_lossy(&value));
    let durian = GetRequest { key: "durian".into() };
    match retried(true, async || kv.clone().get(durian.clone()).await).await {
        Err(status) if status.code() == Code::NotFound => println!("there is no durian"),
        other => println!("durian: {other:?}"),
    }
    let melon = PutRequest { key: "melon".into(), value: vec![0; MAX_VALUE + 1] };
    match retried(false, async || kv.clone().put(melon.clone()).await).await {
        Err(status) if status.code() == Code::OutOfRange => println!("a melon is too large"),
        other => println!("melon: {other:?}"),
    }
    let mut entries = kv.clone().scan(ScanRequest { from: "b".into() }).await?.into_inner();
    while let Some(Entry { key, value }) = entries.message().await? {
        println!("scan: {key} is {}", String::from_utf8_lossy(&value));
    }
    let slow = GetRequest { key: "slow".into() };
    match retried(true, async || kv.clone().get(slow.clone()).await).await {
        Err(e) if matches!(e.code(), Code::Cancelled | Code::DeadlineExceeded) => {
            println!("a slow get ends by its deadline");
        }
        other => println!("slow: {other:?}"),
    }
    match connect(address, "wrong").await?.get(banana.clone()).await {
        Err(status) if status.code() == Code::Unauthenticated => {
            println!("a wrong token is refused");
        }
        other => println!("wrong token: {other:?}"),
    }
    restart()?;
    let value = retried(true, async || kv.clone().get(banana.clone()).await).await?.value;
    println!("banana is {} after a restart", String::from_utf8_lossy(&value));
    Ok(())
}
