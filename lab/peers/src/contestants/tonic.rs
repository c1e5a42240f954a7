//! gRPC by tonic: unary calls over one HTTP/2 connection without TLS.
//!
//! The service is written by hand as `tonic-build` would generate it, so that building this needs
//! no protoc. Flow-control windows are raised from 64 KiB, which would cost large requests a round
//! trip per window.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result};
use bytes::Bytes;
use tonic::body::Body;
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::transport::{Channel, Endpoint, Server, server::TcpIncoming};
use tonic_prost::ProstCodec;
use tower::Service;

use super::{Client, Contestant, Ready, Role};
use crate::drive::{self, AsyncClient, Caller};
use crate::work::{Kind, MAX_REQUEST};

pub(super) const TONIC: Contestant = Contestant {
    name: "tonic",
    about: "tonic 0.14 (gRPC, HTTP/2)",
    transport: "tcp",
    role: Role::Peer,
    max_request: MAX_REQUEST,
    serve,
    connect,
};

const ECHO: &str = "/peers.Peers/Echo";
const SINK: &str = "/peers.Peers/Sink";

/// A stream's and a connection's flow-control windows.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// Larger than HTTP/2's 16 KiB, so that a large request is cut into fewer frames.
const FRAME: u32 = 256 << 10;

/// `message Payload { bytes data = 1; }`, not copied out of the received frame.
#[derive(Clone, PartialEq, prost::Message)]
struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

type Codec = ProstCodec<Payload, Payload>;

#[derive(Clone)]
struct Peers;

impl tonic::server::NamedService for Peers {
    const NAME: &'static str = "peers.Peers";
}

impl Service<http::Request<Body>> for Peers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let kind = match request.uri().path() {
            ECHO => Kind::Echo,
            SINK => Kind::Sink,
            _ => {
                return Box::pin(std::future::ready(Ok(tonic::Status::unimplemented(
                    "no such method",
                )
                .into_http())));
            }
        };
        let unary = tower::service_fn(move |request: tonic::Request<Payload>| {
            let data = super::answer(kind, request.into_inner().data);
            std::future::ready(Ok::<_, tonic::Status>(tonic::Response::new(Payload { data })))
        });
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(Codec::default()).unary(unary, request).await)
        })
    }
}

fn serve(ready: Ready<'_>) -> Result<()> {
    drive::runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        ready(&listener.local_addr()?.to_string());
        Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .add_service(Peers)
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .context("the server ended")
    })
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME);
    AsyncClient::connect(async move {
        let channel = endpoint.connect().await.context("cannot connect")?;
        Ok(Grpc(channel))
    })
}

struct Grpc(Channel);

impl Caller for Grpc {
    async fn call(
        &self,
        kind: Kind,
        request: &Bytes,
        check: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = match kind {
            Kind::Echo => PathAndQuery::from_static(ECHO),
            Kind::Sink => PathAndQuery::from_static(SINK),
            Kind::Get => anyhow::bail!("it has no store"),
        };
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await?;
        let payload = tonic::Request::new(Payload { data: request.clone() });
        let answer = grpc.unary(payload, path, Codec::default()).await?;
        check(&answer.into_inner().data)
    }
}
