//! Courser as a contestant, over UDP and over shared memory.

use anyhow::Result;
use courser::service::RpcError;

use crate::contestants::Role;
use crate::kv::courser::{self as program, KvClient, KvError};
use crate::kv::drive::{Failure, Library};

/// Over shared memory, or over UDP.
#[derive(Clone)]
pub(in crate::kv) struct Courser<const SHM: bool>(KvClient);

fn failure(error: RpcError<KvError>) -> Failure {
    match error {
        RpcError::Service(KvError::NotFound) => Failure::NotFound,
        RpcError::Service(KvError::TooLarge) => Failure::TooLarge,
        error => Failure::other(error),
    }
}

impl<const SHM: bool> Library for Courser<SHM> {
    const NAME: &'static str = if SHM { "courser-shm" } else { "courser-udp" };
    const ABOUT: &'static str = if SHM { "Courser over shared memory" } else { "Courser over UDP" };
    const TRANSPORT: &'static str = if SHM { "shm" } else { "udp" };
    const ROLE: Role = Role::Courser;
    const LISTEN: &'static str = if SHM { "shm://127.0.0.1:0" } else { "udp://127.0.0.1:0" };

    async fn serve(listen: &str, ready: impl FnOnce(String)) -> Result<()> {
        program::serve(listen, ready).await
    }

    async fn connect(address: &str) -> Result<Self> {
        Ok(Self(KvClient::connect(address).await?))
    }

    async fn program(address: &str) -> Result<()> {
        program::client(address).await
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>, Failure> {
        self.0.get(key.to_owned()).await.map_err(failure)
    }

    async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), Failure> {
        self.0.put(key.to_owned(), value).await.map_err(failure)
    }

    async fn scan(&self, from: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let mut stream = self.0.scan(from.to_owned()).await.map_err(Failure::other)?;
        let mut entries = Vec::new();
        while let Some(entry) = stream.next().await {
            entries.push(entry.map_err(Failure::other)?);
        }
        Ok(entries)
    }
}
