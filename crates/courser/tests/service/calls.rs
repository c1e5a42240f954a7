//! Unary calls and one-way messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use courser::Executed;
use courser::service::{LocalService, RpcError, Service};
use futures::future::join_all;

use crate::kv::{KvClient, KvError, KvServer, LocalStore, Store};
use crate::world::{Session, World};

pub fn serve(seed: u64) -> (World, KvClient<Session>, Arc<Store>) {
    let mut world = World::new(seed);
    let store = Arc::new(Store::default());
    KvServer::shared(store.clone()).register(&mut world).unwrap();
    let client = world.run(KvClient::new(world.session())).unwrap();
    (world, client, store)
}

#[test]
fn typed_calls_return_values_and_typed_errors() {
    let (world, kv, store) = serve(1);
    world.run(async {
        assert_eq!(kv.get("a".into()).await, Err(RpcError::Service(KvError::Missing)));
        kv.put("a".into(), "b".into()).await.unwrap();
        assert_eq!(kv.get("a".into()).deadline(Duration::from_millis(3)).await.unwrap(), "b");
        assert_eq!(kv.len().await.unwrap(), 1);
        let long = kv.put("x".repeat(200), String::new()).await.unwrap_err();
        assert_eq!(long, RpcError::Service(KvError::TooLong(200)));
        assert_eq!(long.executed(), Executed::Yes);
        kv.hint("a".into()).deadline(Duration::from_secs(1)).await.unwrap();
    });
    world.settle();
    assert_eq!(store.hints.load(Ordering::Relaxed), 1);
    let deadlines = world.state.borrow().deadlines.clone();
    let set: Vec<_> = deadlines.into_iter().flatten().collect();
    assert_eq!(set, [Duration::from_millis(3), Duration::from_secs(1)]);
    world.assert_clean();
}

#[test]
fn a_service_without_send_serves_the_same_clients() {
    let mut world = World::new(2);
    KvServer::local(LocalStore::default()).register_local(&mut world).unwrap();
    let kv = world.run(KvClient::new(world.session())).unwrap();
    world.run(async {
        kv.put("k".into(), "v".into()).await.unwrap();
        assert_eq!(kv.get("k".into()).await.unwrap(), "v");
        assert_eq!(kv.len().await.unwrap(), 1);
    });
    world.assert_clean();
}

#[test]
fn large_values_and_many_calls_at_once_arrive_whole() {
    let (world, kv, _) = serve(3);
    let value = |i: usize| "v".repeat(i * i * 17);
    world.run(async {
        let puts = (0..100).map(|i| {
            let kv = kv.clone();
            async move { kv.put(format!("{i:03}"), value(i)).await }
        });
        join_all(puts).await.into_iter().for_each(Result::unwrap);
        for i in 0..100 {
            assert_eq!(kv.get(format!("{i:03}")).await.unwrap(), value(i));
        }
    });
    world.assert_clean();
}

#[test]
fn a_dropped_call_drops_its_handler() {
    let (world, kv, store) = serve(4);
    assert!(world.try_run(async { kv.hang().await }).is_none());
    world.assert_clean();
    assert_eq!(store.live.load(Ordering::Relaxed), 0);
    // The handler had run for a while.
    let kv2 = kv.clone();
    let mut hanging = Box::pin(async move { kv2.hang().await });
    assert!(world.try_run(&mut hanging).is_none());
    assert_eq!(store.live.load(Ordering::Relaxed), 1);
    drop(hanging);
    world.assert_clean();
    assert_eq!(store.live.load(Ordering::Relaxed), 0);
}

#[test]
fn a_value_that_is_too_large_is_an_error_before_the_call() {
    let (world, kv, _) = serve(5);
    let started = world.state.borrow().started;
    let error = world.run(async { kv.put("k".into(), "v".repeat(9 << 20)).await }).unwrap_err();
    assert_eq!(error.executed(), Executed::Never);
    assert!(error.to_string().contains("exceeds 8388608 bytes"), "{error}");
    assert_eq!(world.state.borrow().started, started);
    world.assert_clean();
}

#[test]
fn failures_of_the_network_are_failures_of_calls() {
    let (world, kv, _) = serve(6);
    world.state.borrow_mut().failures = 5;
    let (mut good, mut bad) = (0, 0);
    for _ in 0..300 {
        match world.run(async { kv.len().await }) {
            Ok(0) => good += 1,
            Err(RpcError::Call(_)) => bad += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(good > 50 && bad > 50, "{good} {bad}");
    world.assert_clean();
}

#[test]
fn a_request_that_cannot_be_decoded_is_a_typed_error_and_counted() {
    let (world, _, _) = serve(7);
    let get = world.services.request_type("Kv", "get").unwrap();
    for request in [&[][..], &[3, b'a'], &[1, 0xff], &[1, b'a', 0]] {
        let answer = world.run(world.raw(1, get, request)).unwrap();
        assert_eq!(answer.last(), Some(&2), "{request:?}");
        let text = std::str::from_utf8(&answer[..answer.len() - 1]).unwrap();
        assert!(text.contains("; use the same version"), "{text}");
    }
    assert_eq!(world.services.stats().decode_errors, 4);
    world.assert_clean();
}
