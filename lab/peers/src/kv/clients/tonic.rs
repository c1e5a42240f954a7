//! tonic as a contestant.

use anyhow::Result;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::contestants::Role;
use crate::kv::drive::{Failure, Library};
use crate::kv::tonic::{self as program, Entry, GetRequest, KvClient, PutRequest, ScanRequest};

#[derive(Clone)]
pub(in crate::kv) struct Tonic(KvClient<Channel>);

fn failure(status: Status) -> Failure {
    match status.code() {
        Code::NotFound => Failure::NotFound,
        Code::OutOfRange => Failure::TooLarge,
        _ => Failure::other(status),
    }
}

impl Library for Tonic {
    const NAME: &'static str = "tonic";
    const ABOUT: &'static str = "tonic 0.14 (gRPC, HTTP/2)";
    const TRANSPORT: &'static str = "tcp";
    const ROLE: Role = Role::Peer;

    async fn serve(listen: &str, ready: impl FnOnce(String)) -> Result<()> {
        program::serve(listen, |address| ready(address.to_string())).await
    }

    async fn connect(address: &str) -> Result<Self> {
        program::connect(address).await.map(Self)
    }

    async fn program(address: &str) -> Result<()> {
        program::client(address).await
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>, Failure> {
        let request = GetRequest { key: key.to_owned() };
        Ok(self.0.clone().get(request).await.map_err(failure)?.into_inner().value)
    }

    async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), Failure> {
        let request = PutRequest { key: key.to_owned(), value };
        self.0.clone().put(request).await.map_err(failure)?;
        Ok(())
    }

    async fn scan(&self, from: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let request = ScanRequest { from: from.to_owned() };
        let mut stream = self.0.clone().scan(request).await.map_err(failure)?.into_inner();
        let mut entries = Vec::new();
        while let Some(Entry { key, value }) = stream.message().await.map_err(failure)? {
            entries.push((key, value));
        }
        Ok(entries)
    }
}
