//! Streams that are refused when they are opened, of each kind.

use courser::service::{DecodeError, EncodeError, Incoming, NoError, RpcError, Service, Stream};
use courser::{Client, Config, Executed, Server};
use futures::executor::block_on;
use futures::{StreamExt, stream};
use items::{Count, ItemsClient, ItemsServer, mistaken};

use crate::chats_peers::Unchecked;
use crate::world::{LIMIT, World};

/// The same service as servers have it, and as a mistaken client does.
mod items {
    use super::*;

    #[courser::service]
    pub(super) trait Items {
        fn read(&self, name: String) -> impl Stream<Item = u8>;
        async fn write(&self, name: String, items: Incoming<u8>) -> u64;
        fn talk(&self, name: String, items: Incoming<u8>) -> impl Stream<Item = u8>;
    }

    pub(super) mod mistaken {
        use super::*;

        #[courser::service(name = "Items")]
        pub(crate) trait Items {
            fn read(&self, name: Unchecked) -> impl Stream<Item = u8>;
            async fn write(&self, name: Unchecked, items: Incoming<u8>) -> u64;
            fn talk(&self, name: Unchecked, items: Incoming<u8>) -> impl Stream<Item = u8>;
        }
    }

    pub(super) struct Count;

    impl Items for Count {
        fn read(&self, name: String) -> impl Stream<Item = u8> {
            stream::iter(name.into_bytes())
        }
        async fn write(&self, _: String, items: Incoming<u8>) -> u64 {
            items.count().await as u64
        }
        fn talk(&self, _: String, items: Incoming<u8>) -> impl Stream<Item = u8> {
            items.filter_map(|item| std::future::ready(item.ok()))
        }
    }
}

#[test]
fn streams_that_are_refused_leave_their_session_to_the_next_stream() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        ItemsServer::new(Count).register(&mut world).unwrap();
        let client = mistaken::ItemsClient::unchecked(world.session());
        let wrong = || Unchecked::new(vec![0xff; 3]);
        let refused = |e: &_| matches!(e, &RpcError::Decode(DecodeError::Remote(_)));
        let large = || Unchecked::new(vec![b'x'; LIMIT + 1]);
        let unsent = |e: &_| matches!(e, &RpcError::Encode(EncodeError::TooLarge { .. }));
        world.run(async {
            for _ in 0..20 {
                assert!(client.read(wrong()).await.is_err_and(|e| refused(&e)));
                assert!(client.write(wrong()).await.is_err_and(|e| refused(&e)));
                assert!(client.talk(wrong()).await.is_err_and(|e| refused(&e)));
            }
            for _ in 0..3 {
                assert!(client.read(large()).await.is_err_and(|e| unsent(&e)));
                assert!(client.write(large()).await.is_err_and(|e| unsent(&e)));
                assert!(client.talk(large()).await.is_err_and(|e| unsent(&e)));
            }
            let items = client.read(Unchecked::new(vec![b'a'; 2])).await.unwrap();
            assert_eq!(items.collect::<Vec<_>>().await, [Ok(b'a'), Ok(b'a')]);
        });
        // The session of the client, one for all streams, and this one.
        assert_eq!(world.session().number, 3, "seed {seed}");
        drop(client);
        world.assert_clean();
    }
}

/// A client and a server with these slots, whose smaller number holds.
fn with_slots(slots: [u8; 2], test: impl AsyncFn(ItemsClient)) {
    let [of_server, of_client] = slots.map(|slots| Config { slots, ..Config::default() });
    let server = Server::bind_with("udp://127.0.0.1:0", of_server).unwrap();
    let server = server.add_service(ItemsServer::new(Count)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect_with(&uri, of_client).wait().unwrap();
    block_on(async { test(ItemsClient::new(client).await.unwrap()).await });
    serving.handle().stop();
    serving.wait().unwrap();
}

#[test]
fn a_stream_is_not_opened_on_a_session_with_too_few_slots_for_it() {
    let few = |error: RpcError<NoError>, of: [u32; 2]| {
        assert_eq!(error, RpcError::FewSlots { slots: of[0], needed: of[1] });
        assert_eq!(error.executed(), Executed::Never);
    };
    let name = || "ab".to_owned();
    for slots in [[1, 1], [1, 16], [16, 1]] {
        with_slots(slots, async |client| {
            for _ in 0..2 {
                few(client.read(name()).await.unwrap_err(), [1, 2]);
                few(client.write(name()).await.unwrap_err(), [1, 2]);
                few(client.talk(name()).await.unwrap_err(), [1, 4]);
            }
        });
    }
    for slots in [2, 4] {
        with_slots([slots; 2], async |client| {
            for _ in 0..3 {
                let read = client.read(name()).await.unwrap();
                assert_eq!(read.collect::<Vec<_>>().await, [Ok(b'a'), Ok(b'b')]);
                let mut write = client.write(name()).await.unwrap();
                for n in 0..100 {
                    write.send(&n).await.unwrap();
                    write.flush().await.unwrap();
                }
                assert_eq!(write.finish().await, Ok(100));
                let talk = client.talk(name()).await;
                if slots == 2 {
                    few(talk.unwrap_err(), [2, 4]);
                    continue;
                }
                let mut talk = talk.unwrap();
                for n in 0..100 {
                    talk.send(&n).await.unwrap();
                    assert_eq!(talk.next().await, Some(Ok(n)));
                }
                assert_eq!(talk.finish().next().await, None);
            }
        });
    }
}
