//! Streams that are refused when they are opened, of each kind.

use courser::service::{DecodeError, EncodeError, Incoming, RpcError, Service, Stream};
use futures::{StreamExt, stream};
use items::{Count, ItemsServer, mistaken};

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
        // That of the client, one for all streams, and this one.
        assert_eq!(world.session().number, 3, "seed {seed}");
        drop(client);
        world.assert_clean();
    }
}
