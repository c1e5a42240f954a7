//! Cap'n Proto RPC over one TCP connection, by capnp-rpc.

use anyhow::{Context, Result};
use bytes::Bytes;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty::VatNetwork};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::{Client, Contestant, Ready, Role};
use crate::drive::{self, AsyncClient, Caller};
use crate::peers_capnp::peers;
use crate::work::{Kind, MAX_REQUEST, receipt};

pub(super) const CAPNP: Contestant = Contestant {
    name: "capnp",
    about: "capnp-rpc 0.27 (Cap'n Proto)",
    transport: "tcp",
    role: Role::Peer,
    max_request: MAX_REQUEST,
    serve,
    connect,
};

type Shared<T> = capnp::capability::Rc<T>;

struct Server;

impl peers::Server for Server {
    async fn echo(
        self: Shared<Self>,
        request: peers::EchoParams,
        mut answer: peers::EchoResults,
    ) -> Result<(), capnp::Error> {
        answer.get().set_data(request.get()?.get_data()?);
        Ok(())
    }

    async fn sink(
        self: Shared<Self>,
        request: peers::SinkParams,
        mut answer: peers::SinkResults,
    ) -> Result<(), capnp::Error> {
        answer.get().set_receipt(&receipt(request.get()?.get_data()?));
        Ok(())
    }
}

/// The connection's two halves as the library wants them.
fn network(stream: TcpStream, side: Side) -> Result<Box<dyn capnp_rpc::VatNetwork<Side>>> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let (read, write) = (read.compat(), write.compat_write());
    let buffered = futures::io::BufReader::new(read);
    let options = capnp::message::ReaderOptions::new();
    Ok(Box::new(VatNetwork::new(buffered, futures::io::BufWriter::new(write), side, options)))
}

fn serve(ready: Ready<'_>) -> Result<()> {
    LocalSet::new().block_on(&drive::runtime()?, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        ready(&listener.local_addr()?.to_string());
        let client: peers::Client = capnp_rpc::new_client(Server);
        loop {
            let (stream, _) = listener.accept().await?;
            let network = network(stream, Side::Server)?;
            tokio::task::spawn_local(RpcSystem::new(network, Some(client.clone().client)));
        }
    })
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let address = address.to_owned();
    AsyncClient::connect(async move {
        let stream = TcpStream::connect(address).await.context("cannot connect")?;
        let mut system = RpcSystem::new(network(stream, Side::Client)?, None);
        let client: peers::Client = system.bootstrap(Side::Server);
        tokio::task::spawn_local(system);
        Ok(Capnp(client))
    })
}

struct Capnp(peers::Client);

impl Caller for Capnp {
    async fn call(
        &self,
        kind: Kind,
        data: &Bytes,
        check: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match kind {
            Kind::Echo => {
                let mut request = self.0.echo_request();
                request.get().set_data(data);
                check(request.send().promise.await?.get()?.get_data()?)
            }
            Kind::Get => anyhow::bail!("it has no store"),
            Kind::Sink => {
                let mut request = self.0.sink_request();
                request.get().set_data(data);
                check(request.send().promise.await?.get()?.get_receipt()?)
            }
        }
    }
}
