//! Errors of typed calls and streams state truthfully whether the handler ran: handlers count their
//! starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use courser::service::{
    DecodeError, EncodeError, Incoming, MidStreamError, NoError, RpcError, Service, Stream,
};
use courser::{Client, Executed, Server};
use futures::executor::block_on;
use futures::stream;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::world::World;

/// The service of the server.
#[courser::service(name = "Texts", codec = Postcard)]
trait Texts {
    async fn unary(&self, text: String) -> Unchecked;
    fn down(&self, text: String) -> impl Stream<Item = Unchecked>;
    async fn up(&self, texts: Incoming<String>) -> u64;
}

/// A text that may be none: it is not checked when it is written.
pub struct Unchecked(Vec<u8>);

impl Serialize for Unchecked {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Unchecked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Unchecked(text.into()))
    }
}

/// The same service where the client's texts are not checked.
mod mistaken {
    use super::*;

    #[courser::service(name = "Texts", codec = Postcard)]
    pub(super) trait Texts {
        async fn unary(&self, text: Unchecked) -> String;
        fn down(&self, text: Unchecked) -> impl Stream<Item = String>;
        async fn up(&self, texts: Incoming<Unchecked>) -> u64;
    }
}

#[derive(Clone, Default)]
struct Counts(Arc<AtomicU64>);

impl Texts for Counts {
    async fn unary(&self, _: String) -> Unchecked {
        self.0.fetch_add(1, SeqCst);
        Unchecked(vec![0xff; 3])
    }
    fn down(&self, text: String) -> impl Stream<Item = Unchecked> {
        self.0.fetch_add(1, SeqCst);
        let item = if text == GOOD { text.into_bytes() } else { vec![0xff; 3] };
        stream::repeat_with(move || Unchecked(item.clone()))
    }
    async fn up(&self, mut texts: Incoming<String>) -> u64 {
        self.0.fetch_add(1, SeqCst);
        let mut n = 0;
        while let Some(Ok(_)) = texts.next().await {
            n += 1;
        }
        std::future::pending::<()>().await; // the client's error comes from its push
        n
    }
}

impl Counts {
    /// Compares the handlers that were started since the last check with a verdict.
    fn check(&self, error: &RpcError<NoError>, expected: Executed) {
        let started = self.0.swap(0, SeqCst);
        assert_eq!(error.executed(), expected, "{error:?}");
        assert_eq!(started, u64::from(expected != Executed::Never), "{error:?}");
    }
}

const NO_TEXT: [u8; 2] = [0xff, 0xfe];
/// Asks for items that are texts.
const GOOD: &str = "good";

fn mistaken(seed: u64) -> (World, mistaken::TextsClient<crate::world::Session>, Counts) {
    let (mut world, counts) = (World::new(seed), Counts::default());
    TextsServer::new(counts.clone()).register(&mut world).unwrap();
    let client = mistaken::TextsClient::unchecked(world.session());
    (world, client, counts)
}

#[test]
fn requests_that_cannot_be_decoded_never_run() {
    let (world, client, counts) = mistaken(1);
    world.run(async {
        let error = client.unary(Unchecked(NO_TEXT.to_vec())).await.unwrap_err();
        assert!(matches!(error, RpcError::Decode(DecodeError::Remote(_))), "{error:?}");
        counts.check(&error, Executed::Never);
        let error = match client.down(Unchecked(NO_TEXT.to_vec())).await {
            Ok(mut down) => down.next().await.unwrap().unwrap_err(),
            Err(e) => e,
        };
        counts.check(&error, Executed::Never);
        let error = client.unary(Unchecked(vec![0; 9 << 20])).await.unwrap_err();
        assert!(matches!(error, RpcError::Encode(EncodeError::TooLarge { .. })), "{error:?}");
        counts.check(&error, Executed::Never);
    });
}

#[test]
fn answers_that_cannot_be_decoded_are_of_handlers_that_ran() {
    let (world, client, counts) = mistaken(2);
    world.run(async {
        let error = client.unary(Unchecked(b"text".to_vec())).await.unwrap_err();
        assert!(matches!(error, RpcError::Decode(DecodeError::Codec { .. })), "{error:?}");
        counts.check(&error, Executed::Yes);
    });
    let unknown = RpcError::<NoError>::Decode(DecodeError::Form("an unknown mark"));
    assert_eq!(unknown.executed(), Executed::Maybe, "it may be of another kind of handler");
}

#[test]
fn errors_of_items_state_that_the_handler_may_have_run() {
    let (world, client, counts) = mistaken(3);
    world.run(async {
        let mut down = client.down(Unchecked(b"text".to_vec())).await.unwrap();
        let error = down.next().await.unwrap().unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Decode(_))), "{error:?}");
        counts.check(&error, Executed::Maybe);

        let mut up = client.up().await.unwrap();
        up.send(&Unchecked(b"text".to_vec())).await.unwrap();
        up.flush().await.unwrap();
        let error = up.send(&Unchecked(vec![0; 9 << 20])).await.unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Encode(_))), "{error:?}");
        counts.check(&error, Executed::Maybe);

        let mut up = client.up().await.unwrap();
        let failed = match up.send(&Unchecked(NO_TEXT.to_vec())).await {
            Ok(()) => up.flush().await,
            failed => failed,
        };
        let error = failed.unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Decode(_))), "{error:?}");
        counts.check(&error, Executed::Maybe);
    });
}

#[test]
fn a_stream_that_loses_its_server_may_have_run() {
    let counts = Counts::default();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(TextsServer::new(counts.clone())).unwrap();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = TextsClient::unchecked(Client::connect(&uri).wait().unwrap());
    block_on(async {
        let mut streams = Vec::new();
        for _ in 0..8 {
            let mut down = client.down(GOOD.into()).await.unwrap();
            down.next().await.unwrap().unwrap();
            streams.push(down);
        }
        let mut up = client.up().await.unwrap();
        up.send(&"text".to_owned()).await.unwrap();
        up.flush().await.unwrap();
        serving.handle().stop();
        serving.wait().unwrap();
        assert_eq!(counts.0.load(SeqCst), 9);
        // The next pulls and pushes may find the session gone, and are never sent.
        for mut down in streams {
            let error = loop {
                if let Err(e) = down.next().await.unwrap() {
                    break e;
                }
            };
            assert_ne!(error.executed(), Executed::Never, "{error:?}");
        }
        let error = up.finish().await.unwrap_err();
        assert_ne!(error.executed(), Executed::Never, "{error:?}");
    });
}
