//! tarpc over one TCP connection, with its bincode format. Payloads are `Bytes`, so that serde
//! copies them whole and not byte by byte.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt;
use tarpc::context;
use tarpc::serde_transport::tcp;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;

use super::{Client, Contestant, Ready, Role};
use crate::drive::{self, AsyncClient, Caller};
use crate::work::{Kind, MAX_REQUEST};

pub(super) const TARPC: Contestant = Contestant {
    name: "tarpc",
    about: "tarpc 0.38 (bincode)",
    transport: "tcp",
    role: Role::Peer,
    max_request: MAX_REQUEST,
    serve,
    connect,
};

#[tarpc::service]
trait Peers {
    async fn echo(data: Bytes) -> Bytes;
    async fn sink(data: Bytes) -> Bytes;
}

#[derive(Clone)]
struct Server;

impl Peers for Server {
    async fn echo(self, _: context::Context, data: Bytes) -> Bytes {
        super::answer(Kind::Echo, data)
    }

    async fn sink(self, _: context::Context, data: Bytes) -> Bytes {
        super::answer(Kind::Sink, data)
    }
}

fn serve(ready: Ready<'_>) -> Result<()> {
    drive::runtime()?.block_on(async {
        let mut incoming = tcp::listen("127.0.0.1:0", Bincode::default).await?;
        ready(&incoming.local_addr().to_string());
        while let Some(connection) = incoming.next().await {
            let connection = connection?;
            connection.get_ref().set_nodelay(true)?;
            let answers = BaseChannel::with_defaults(connection).execute(Server.serve());
            tokio::spawn(answers.for_each(|answer| async {
                tokio::spawn(answer);
            }));
        }
        anyhow::bail!("the server ended")
    })
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let address = address.to_owned();
    AsyncClient::connect(async move {
        let connection = tcp::connect(address, Bincode::default).await.context("cannot connect")?;
        connection.get_ref().set_nodelay(true)?;
        Ok(Tarpc(PeersClient::new(tarpc::client::Config::default(), connection).spawn()))
    })
}

struct Tarpc(PeersClient);

impl Caller for Tarpc {
    async fn call(
        &self,
        kind: Kind,
        request: &Bytes,
        check: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (context, data) = (context::current(), request.clone());
        let answer = match kind {
            Kind::Echo => self.0.echo(context, data).await?,
            Kind::Sink => self.0.sink(context, data).await?,
            Kind::Get => anyhow::bail!("it has no store"),
        };
        check(&answer)
    }
}
