//! QUIC by quinn: one connection, one bidirectional stream per RPC. Encrypted, as QUIC always is.
//! Packets are what a 1500-byte link carries, as Courser's over UDP.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use quinn::{TransportConfig, VarInt};

use super::{Client, Contestant, Ready, Role};
use crate::drive::{self, AsyncClient, Caller};
use crate::work::{Kind, MAX_REQUEST};

pub(super) const QUINN: Contestant = Contestant {
    name: "quinn",
    about: "quinn 0.11 (QUIC streams, encrypted)",
    transport: "udp",
    role: Role::Peer,
    max_request: MAX_REQUEST,
    serve,
    connect,
};

const NAME: &str = "localhost";

/// Windows beyond what is ever in flight here, so that flow control waits for nothing.
fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(8 << 20))
        .receive_window(VarInt::from_u32(64 << 20))
        .send_window(64 << 20)
        .max_concurrent_bidi_streams(VarInt::from_u32(1024))
        .max_idle_timeout(None);
    Arc::new(config)
}

fn serve(ready: Ready<'_>) -> Result<()> {
    drive::runtime()?.block_on(async {
        let own = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let certificate = own.cert.der().clone();
        let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
        config.transport_config(transport());
        let endpoint = Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        // The client trusts this certificate and no other.
        ready(&format!("{}/{}", endpoint.local_addr()?, to_hex(&certificate)));
        while let Some(incoming) = endpoint.accept().await {
            let connection = incoming.await?;
            tokio::spawn(async move {
                while let Ok((send, receive)) = connection.accept_bi().await {
                    // A stream that breaks off is its client's loss.
                    tokio::spawn(async move { serve_stream(send, receive).await.ok() });
                }
            });
        }
        bail!("the server ended")
    })
}

/// A request is its kind, one byte, and the payload; an answer is the payload.
async fn serve_stream(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let mut request = Bytes::from(receive.read_to_end(MAX_REQUEST + 1).await?);
    ensure!(!request.is_empty(), "a request without a kind");
    let kind = if request.split_to(1)[0] == 0 { Kind::Echo } else { Kind::Sink };
    send.write_chunk(super::answer(kind, request)).await?;
    send.finish()?;
    Ok(())
}

fn connect(address: &str) -> Result<Box<dyn Client>> {
    let (address, certificate) = address.split_once('/').context("no certificate")?;
    let address: SocketAddr = address.parse()?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(from_hex(certificate)?))?;
    AsyncClient::connect(async move {
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
        config.transport_config(transport());
        let mut endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(address, NAME)?.await.context("cannot connect")?;
        Ok(Quic { connection, _endpoint: endpoint })
    })
}

struct Quic {
    connection: Connection,
    _endpoint: Endpoint,
}

impl Caller for Quic {
    async fn call(
        &self,
        kind: Kind,
        request: &Bytes,
        check: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut send, mut receive) = self.connection.open_bi().await?;
        let head = Bytes::from_static(if kind == Kind::Echo { &[0] } else { &[1] });
        send.write_all_chunks(&mut [head, request.clone()]).await?;
        send.finish()?;
        check(&receive.read_to_end(MAX_REQUEST).await?)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).context("not hexadecimal");
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Ok((digit(high)? << 4 | digit(low)?) as u8),
            _ => bail!("an odd number of digits"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_there_and_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)).expect("digits"), bytes);
        assert!(from_hex("0").is_err() && from_hex("0x").is_err());
    }
}
