//! The key-value service with tonic: server and client. The service is in `proto/kv.proto`, and
//! `build.rs` generates its code.
//!
//! An application error is a status, as users of gRPC have it; its code says which.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use anyhow::Result;
use futures::stream::{self, Iter};
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic::{Code, Request, Response, Status};

mod proto {
    tonic::include_proto!("kv");
}
pub use proto::kv_client::KvClient;
use proto::kv_server::{Kv, KvServer};
pub use proto::{Entry, GetRequest, PutRequest, ScanRequest};
use proto::{GetResponse, PutResponse};

const MAX_VALUE: usize = 64 << 10;

#[derive(Default)]
struct Store(Mutex<BTreeMap<String, Vec<u8>>>);

#[tonic::async_trait]
impl Kv for Store {
    type ScanStream = Iter<std::vec::IntoIter<Result<Entry, Status>>>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let key = request.into_inner().key;
        let value = self.0.lock().unwrap().get(&key).cloned();
        match value {
            Some(value) => Ok(Response::new(GetResponse { value })),
            None => Err(Status::not_found("there is no such key")),
        }
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let PutRequest { key, value } = request.into_inner();
        if value.len() > MAX_VALUE {
            return Err(Status::out_of_range("the value is too large"));
        }
        self.0.lock().unwrap().insert(key, value);
        Ok(Response::new(PutResponse {}))
    }

    async fn scan(
        &self,
        request: Request<ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let entries = self.0.lock().unwrap();
        let entries = entries.range(request.into_inner().from..);
        let entries: Vec<_> =
            entries.map(|(k, v)| Ok(Entry { key: k.clone(), value: v.clone() })).collect();
        Ok(Response::new(stream::iter(entries)))
    }
}

pub async fn serve(address: &str, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let incoming = TcpIncoming::bind(address.parse()?)?.with_nodelay(Some(true));
    ready(incoming.local_addr()?);
    let service = KvServer::new(Store::default());
    Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
}

pub async fn connect(address: &str) -> Result<KvClient<Channel>> {
    Ok(KvClient::connect(format!("http://{address}")).await?)
}

pub async fn client(address: &str) -> Result<()> {
    let mut kv = connect(address).await?;
    for (key, value) in [("apple", "green"), ("banana", "yellow"), ("cherry", "red")] {
        kv.put(PutRequest { key: key.into(), value: value.into() }).await?;
    }
    let value = kv.get(GetRequest { key: "banana".into() }).await?.into_inner().value;
    println!("banana is {}", String::from_utf8_lossy(&value));
    match kv.get(GetRequest { key: "durian".into() }).await {
        Err(status) if status.code() == Code::NotFound => println!("there is no durian"),
        other => println!("durian: {other:?}"),
    }
    let melon = PutRequest { key: "melon".into(), value: vec![0; MAX_VALUE + 1] };
    match kv.put(melon).await {
        Err(status) if status.code() == Code::OutOfRange => println!("a melon is too large"),
        other => println!("melon: {other:?}"),
    }
    let mut entries = kv.scan(ScanRequest { from: "b".into() }).await?.into_inner();
    while let Some(Entry { key, value }) = entries.message().await? {
        println!("scan: {key} is {}", String::from_utf8_lossy(&value));
    }
    Ok(())
}
