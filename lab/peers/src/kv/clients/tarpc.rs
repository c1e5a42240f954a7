//! tarpc as a contestant.

use anyhow::Result;
use tarpc::context;

use crate::contestants::Role;
use crate::kv::drive::{Failure, Library};
use crate::kv::tarpc::{self as program, KvClient, KvError, PAGE};

#[derive(Clone)]
pub(in crate::kv) struct Tarpc(KvClient);

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        match error {
            KvError::NotFound => Self::NotFound,
            KvError::TooLarge => Self::TooLarge,
        }
    }
}

impl Library for Tarpc {
    const NAME: &'static str = "tarpc";
    const ABOUT: &'static str = "tarpc 0.38 (bincode)";
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
        Ok(self.0.get(context::current(), key.to_owned()).await.map_err(Failure::other)??)
    }

    async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), Failure> {
        Ok(self
            .0
            .put(context::current(), key.to_owned(), value)
            .await
            .map_err(Failure::other)??)
    }

    async fn scan(&self, from: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            let from = entries.last().map_or(from.to_owned(), |(last, _)| last.clone() + "\0");
            let page = self.0.scan(context::current(), from, PAGE).await.map_err(Failure::other)?;
            if page.is_empty() {
                return Ok(entries);
            }
            entries.extend(page);
        }
    }
}
