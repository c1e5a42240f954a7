//! Streams of the server.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use courser::service::{LocalService, MidStreamError, RpcError, Service, Stream};
use courser::{CallFailure, Executed};
use courser_buf::{Arena, ArenaConfig, Heap};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};

use crate::calls::serve;
use crate::kv::{KvClient, KvError, KvServer, LocalStore, Store, filled};
use crate::world::World;

/// What both ends of a stream hold of items of up to 16 KiB: two batches on the way or read, two
/// that wait, one that is filled, each in a buffer of 80 KiB.
const HELD: usize = 5 * (81 << 10) + (64 << 10);

#[test]
fn items_arrive_in_order_whatever_the_network_reorders() {
    for seed in 0..200 {
        let (world, kv, store) = serve(seed);
        let (items, size) = (seed * 3, (seed % 7 * 900) as u32);
        let got: Vec<_> =
            world.run(async { kv.count(items, size).await.unwrap().try_collect().await.unwrap() });
        assert_eq!(got.len() as u64, items, "seed {seed}");
        for (i, (number, bytes)) in got.iter().enumerate() {
            assert!(
                *number == i as u64
                    && bytes.len() == size as usize
                    && bytes.bytes().all(|b| b == i as u8 & 0x7f)
            );
        }
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
        drop(kv);
        world.assert_clean();
    }
}

#[test]
fn a_stream_is_open_when_its_await_returns() {
    for seed in 0..100 {
        let (world, kv, store) = serve(seed);
        world.run(async {
            let numbers = kv.count(5, 1).await.unwrap();
            // Nothing has polled the stream yet.
            assert_eq!(store.live.load(Ordering::Relaxed), 1, "seed {seed}");
            drop(numbers);
        });
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
    }
}

/// Publishes numbers.
#[courser::service]
pub trait Bell {
    /// Numbers that are published after the call.
    fn rings(&self) -> impl Stream<Item = u64>;
    /// The same; the stream subscribes when it is first polled.
    fn lazy_rings(&self) -> impl Stream<Item = u64>;
}

#[derive(Default)]
struct Tower(Mutex<Vec<UnboundedSender<u64>>>);

impl Tower {
    fn subscribe(&self) -> UnboundedReceiver<u64> {
        let (sender, receiver) = unbounded();
        self.0.lock().unwrap().push(sender);
        receiver
    }

    fn ring(&self, number: u64) {
        self.0.lock().unwrap().retain(|watcher| watcher.unbounded_send(number).is_ok());
    }
}

impl Bell for Arc<Tower> {
    fn rings(&self) -> impl Stream<Item = u64> {
        self.subscribe()
    }

    fn lazy_rings(&self) -> impl Stream<Item = u64> {
        let tower = self.clone();
        stream::once(async move { tower.subscribe() }).flatten()
    }
}

#[test]
fn an_event_after_the_await_reaches_each_watcher() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let tower = Arc::new(Tower::default());
        BellServer::new(tower.clone()).register(&mut world).unwrap();
        let bell = BellClient::unchecked(world.session());
        world.run(async {
            let mut watchers = Vec::new();
            for i in 0..50 {
                watchers.push(match i % 2 {
                    0 => bell.rings().await.unwrap(),
                    _ => bell.lazy_rings().await.unwrap(),
                });
            }
            tower.ring(7);
            for mut watcher in watchers {
                assert_eq!(watcher.next().await, Some(Ok(7)));
            }
        });
        world.assert_clean();
    }
}

#[test]
fn errors_of_opening_a_stream_are_those_of_its_await() {
    for seed in 0..100 {
        let (world, kv, store) = serve(seed);
        world.run(async {
            let error = kv.scan("refuse".into()).await.unwrap_err();
            assert_eq!(error, RpcError::Service(KvError::Missing));
            let error = kv.upload("refuse".into()).await.unwrap_err();
            assert_eq!(error, RpcError::Service(KvError::Missing));
            // A method that the server does not have.
            world.forget("scan");
            let error = kv.scan(String::new()).await.unwrap_err();
            assert!(matches!(error, RpcError::Call(CallFailure::Failed(_))), "{error:?}");
            // A stream that has ended before its first item is no error.
            assert!(kv.count(0, 0).await.unwrap().next().await.is_none());
        });
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn items_that_come_slowly_arrive_one_by_one() {
    let (world, kv, store) = serve(1);
    for i in 0..50 {
        store.map.lock().unwrap().insert(format!("{i:02}"), "v".into());
    }
    world.run(async {
        let mut scan = kv.scan("10".into()).await.unwrap();
        for i in 10..50 {
            assert_eq!(scan.next().await.unwrap().unwrap().0, format!("{i:02}"));
        }
        assert!(scan.next().await.is_none());
        assert!(scan.next().await.is_none());
    });
    world.assert_clean();
}

#[test]
fn an_application_error_is_the_last_item() {
    for seed in 0..50 {
        let (world, kv, _) = serve(seed);
        world.run(async {
            let mut scan = kv.scan("fail".into()).await.unwrap();
            assert_eq!(scan.next().await.unwrap().unwrap(), ("a".to_owned(), "b".to_owned()));
            assert_eq!(scan.next().await, Some(Err(RpcError::Service(KvError::Missing))));
            assert!(scan.next().await.is_none());
        });
        world.assert_clean();
    }
}

#[test]
fn a_dropped_stream_drops_that_of_the_handler_and_frees_all() {
    for seed in 0..100 {
        let (world, kv, store) = serve(seed);
        world.run(async {
            let mut numbers = kv.count(u64::MAX, 100).await.unwrap();
            for i in 0..seed * 20 {
                assert_eq!(numbers.next().await.unwrap().unwrap().0, i);
            }
        });
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0, "seed {seed}");
    }
}

#[test]
fn a_stalled_reader_holds_the_stated_bytes_and_delays_no_call() {
    for size in [10, 1_000, 16_000] {
        let (world, kv, store) = serve(3);
        let mut numbers = world.run(async {
            let mut numbers = kv.count(u64::MAX, size).await.unwrap();
            numbers.next().await.unwrap().unwrap();
            numbers
        });
        world.settle(); // nothing more happens without a reader
        let taken = store.taken.load(Ordering::Relaxed);
        for _ in 0..100 {
            world.run(async { kv.len().await }).unwrap();
        }
        assert_eq!(store.taken.load(Ordering::Relaxed), taken);
        let held = world.arena.stats().in_use_bytes;
        assert!(held <= HELD, "{size}: {held} bytes");
        // It goes on where it was.
        world.run(async {
            for i in 1..10_000 {
                assert_eq!(numbers.next().await.unwrap().unwrap().0, i);
            }
        });
        drop(numbers);
        world.assert_clean();
    }
}

#[test]
fn a_long_stream_takes_constant_memory() {
    let (world, kv, _) = serve(4);
    // `COURSER_STREAM_ITEMS=2500000` makes it 10 GB.
    let set = std::env::var("COURSER_STREAM_ITEMS").ok();
    let items = set.map_or(30_000, |n| n.parse().expect("COURSER_STREAM_ITEMS is a number"));
    world.run(async {
        let mut numbers = kv.count(items, 4_000).await.unwrap();
        let mut next = 0;
        while let Some(item) = numbers.next().await {
            assert_eq!(item.unwrap().0, next);
            next += 1;
        }
        assert_eq!(next, items);
    });
    let peak = world.arena.stats().peak_in_use_bytes;
    assert!(peak <= HELD, "{peak} bytes");
    world.assert_clean();
}

#[test]
fn items_larger_than_a_batch_travel_alone() {
    let (world, kv, _) = serve(5);
    let size = 300_000;
    let got: Vec<_> =
        world.run(async { kv.count(20, size).await.unwrap().try_collect().await.unwrap() });
    assert!(got.len() == 20 && got.iter().all(|(_, bytes)| bytes.len() == size as usize));
    let peak = world.arena.stats().peak_in_use_bytes;
    assert!(peak <= 8 * 400_000, "{peak} bytes");
    world.assert_clean();
}

#[test]
fn an_item_that_is_too_large_ends_the_stream_with_an_error_after_those_before_it() {
    let (world, kv, store) = serve(6);
    {
        let mut map = store.map.lock().unwrap();
        map.insert("a".into(), "small".into());
        map.insert("b".into(), "v".repeat(9 << 20));
        map.insert("c".into(), "small".into());
    }
    world.run(async {
        let mut scan = kv.scan("a".into()).await.unwrap();
        assert_eq!(scan.next().await.unwrap().unwrap().0, "a");
        let error = scan.next().await.unwrap().unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Encode(_))), "{error:?}");
        assert_eq!(error.executed(), Executed::Maybe, "the handler goes on after the item");
        assert!(scan.next().await.is_none());
    });
    world.assert_clean();
}

#[test]
fn many_streams_at_once_do_not_mix() {
    let (world, kv, _) = serve(7);
    world.run(async {
        let streams = (0..40).map(|i| {
            let kv = kv.clone();
            async move {
                let items: Vec<_> =
                    kv.count(i * 10, i as u32 * 50).await.unwrap().try_collect().await.unwrap();
                assert!(items.len() as u64 == i * 10);
                assert!(items.iter().all(|(_, bytes)| bytes.len() as u64 == i * 50));
            }
        });
        join_all(streams).await;
    });
    // Sessions of ended streams serve the next ones.
    let sessions = world.session().number;
    world.run(async {
        for _ in 0..20 {
            let items: Vec<_> = kv.count(3, 3).await.unwrap().try_collect().await.unwrap();
            assert_eq!(items.len(), 3);
        }
    });
    assert_eq!(world.session().number, sessions + 1);
    assert_eq!(world.services.stats().streams_opened, 60);
    world.assert_clean();
}

#[test]
fn a_stream_whose_calls_fail_ends_with_the_failure() {
    let (mut complete, mut failed) = (0, 0);
    for seed in 0..300 {
        let (world, kv, store) = serve(seed);
        world.state.borrow_mut().failures = 60;
        let result = world.run(async {
            let mut numbers = kv.count(2_000, 400).await?;
            let mut next = 0;
            while let Some(item) = numbers.next().await {
                assert_eq!(item?.0, next);
                next += 1;
            }
            assert_eq!(next, 2_000);
            Ok(())
        });
        match result {
            Ok(()) => complete += 1,
            Err(
                RpcError::Call(CallFailure::Failed(_))
                | RpcError::MidStream(MidStreamError::Call(CallFailure::Failed(_))),
            ) => failed += 1,
            Err(other) => panic!("{other:?}"),
        }
        world.state.borrow_mut().failures = 0;
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
    }
    assert!(complete > 20 && failed > 20, "{complete} {failed}");
}

#[test]
fn streams_of_a_service_without_send_are_the_same() {
    let mut world = World::new(9);
    KvServer::local(LocalStore::default()).register_local(&mut world).unwrap();
    let kv = KvClient::unchecked(world.session());
    world.run(async {
        for key in ["a", "b", "c"] {
            kv.put(key.into(), "v".into()).await.unwrap();
        }
        let all: Vec<_> = kv.scan("b".into()).await.unwrap().try_collect().await.unwrap();
        assert_eq!(all.len(), 2);
        let mut upload = kv.upload(String::new()).await.unwrap();
        upload.send(&filled(1, 30)).await.unwrap();
        assert_eq!(upload.finish().await.unwrap(), 30);
    });
    world.assert_clean();
}

#[test]
fn streams_that_are_not_read_leave_memory_to_others() {
    // Both ends are here: the clients of 80 streams hold 13 MiB, and their server could hold 16.
    let limit_bytes = 32 << 20;
    let config = ArenaConfig { limit_bytes, ..ArenaConfig::default() };
    let mut world = World::new(11);
    world.arena = Arena::new(Arc::new(Heap::default()), config).unwrap();
    let store = Arc::new(Store::default());
    KvServer::shared(store.clone()).register(&mut world).unwrap();
    let kv = world.run(KvClient::new(world.session())).unwrap();
    let mut unread = world.run(async {
        let mut unread = Vec::new();
        for _ in 0..80 {
            let mut numbers = kv.count(400, 1_000).await.unwrap();
            // Reads the first batch to its end, so that the server fills the next ones.
            for i in 0..10 {
                assert_eq!(numbers.next().await.unwrap().unwrap().0, i);
            }
            unread.push(numbers);
        }
        unread
    });
    world.settle();
    let held = world.services.stats().stream_bytes;
    assert!(held > 0 && held <= (limit_bytes / 8 + (256 << 10)) as u64, "{held} bytes");
    assert!(world.arena.alloc(8 << 20).is_ok(), "a large message of another client");
    // Streams go on, and each batch is made when it is pulled.
    world.run(async {
        for numbers in &mut unread {
            for i in 10..400 {
                assert_eq!(numbers.next().await.unwrap().unwrap().0, i);
            }
            assert!(numbers.next().await.is_none());
        }
    });
    drop(unread);
    assert_eq!(world.services.stats().stream_bytes, 0);
    world.assert_clean();
}
