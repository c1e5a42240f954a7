//! Streams of the client.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use courser::service::{MidStreamError, RpcError};
use courser::{CallFailure, Executed};

use crate::calls::serve;
use crate::kv::{KvError, filled};

#[test]
fn items_arrive_in_order_and_the_handlers_outcome_returns() {
    for seed in 0..200 {
        let (world, kv, store) = serve(seed);
        let (items, size) = (seed * 2, (seed % 9 * 1_000) as usize);
        let sum = world.run(async {
            let mut upload = kv.upload("n".into()).deadline(Duration::from_secs(9)).await.unwrap();
            for i in 0..items {
                upload.send(&filled(i, size)).await.unwrap();
                if i % 50 == 7 {
                    upload.flush().await.unwrap();
                    // The handler may not have finished with the last one.
                    assert!((i..=i + 1).contains(&store.taken.load(Ordering::Relaxed)));
                }
            }
            upload.finish().await.unwrap()
        });
        assert_eq!(sum, items * size as u64, "seed {seed}");
        assert!(world.state.borrow().deadlines.contains(&Some(Duration::from_secs(9))));
        world.assert_clean();
    }
}

#[test]
fn a_handler_that_returns_early_ends_the_stream() {
    for seed in 0..100 {
        let (world, kv, _) = serve(seed);
        world.run(async {
            let mut upload = kv.upload("early".into()).await.unwrap();
            for _ in 0..1_000 {
                upload.send(&filled(1, 1_000)).await.unwrap();
            }
            assert!(upload.has_ended());
            assert_eq!(upload.finish().await, Ok(1_000));
            // The error of the handler is that of the next item, or of the end.
            let mut upload = kv.upload("fail".into()).await.unwrap();
            let failed = loop {
                match upload.send(&filled(1, 1_000)).await {
                    Ok(()) => {}
                    Err(e) => break e,
                }
            };
            assert_eq!(failed, RpcError::Service(KvError::TooLong(4)));
            let mut upload = kv.upload("fail".into()).await.unwrap();
            upload.send(&filled(1, 1)).await.unwrap();
            assert_eq!(upload.finish().await, Err(RpcError::Service(KvError::TooLong(4))));
        });
        world.assert_clean();
    }
}

#[test]
fn a_stalled_handler_stops_the_client_within_the_stated_bytes() {
    let (world, kv, store) = serve(2);
    let sent = std::cell::Cell::new(0);
    let mut sending = Box::pin(async {
        let mut upload = kv.upload("stall".into()).await.unwrap();
        loop {
            upload.send(&filled(1, 1_000)).await.unwrap();
            sent.set(sent.get() + 1);
        }
    });
    assert!(world.try_run(&mut sending).is_none());
    assert!((60..250).contains(&sent.get()), "{} items", sent.get());
    let held = world.arena.stats().in_use_bytes;
    assert!(held <= 5 * (81 << 10), "{held} bytes");
    assert_eq!(world.run(async { kv.len().await }), Ok(0));
    assert_eq!(store.live.load(Ordering::Relaxed), 1);
    drop(sending);
    world.assert_clean();
    assert_eq!(store.live.load(Ordering::Relaxed), 0);
}

#[test]
fn a_long_upload_takes_constant_memory() {
    let (world, kv, _) = serve(3);
    let sum = world.run(async {
        let mut upload = kv.upload("n".into()).await.unwrap();
        for _ in 0..30_000 {
            upload.send(&filled(7, 3_000)).await.unwrap();
        }
        upload.finish().await.unwrap()
    });
    assert_eq!(sum, 90_000_000);
    let peak = world.arena.stats().peak_in_use_bytes;
    assert!(peak <= 6 * (81 << 10), "{peak} bytes");
    world.assert_clean();
}

#[test]
fn an_item_that_is_too_large_is_refused_and_others_are_sent() {
    let (world, kv, _) = serve(4);
    world.run(async {
        let mut upload = kv.upload("n".into()).await.unwrap();
        upload.send(&filled(1, 10)).await.unwrap();
        let error = upload.send(&filled(1, 9 << 20)).await.unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Encode(_))), "{error:?}");
        assert_eq!(error.executed(), Executed::Maybe, "its handler runs");
        upload.send(&filled(1, 1_000_000)).await.unwrap();
        upload.send(&filled(1, 10)).await.unwrap();
        assert_eq!(upload.finish().await, Ok(1_000_020));
    });
    world.assert_clean();
}

#[test]
fn the_items_of_a_stream_are_sent_until_the_handler_returns() {
    let (world, kv, store) = serve(5);
    world.run(async {
        let mut upload = kv.upload("n".into()).await.unwrap();
        upload.send_all(futures::stream::iter((0..500).map(|_| filled(1, 300)))).await.unwrap();
        assert_eq!(upload.finish().await, Ok(150_000));
        let mut upload = kv.upload("early".into()).await.unwrap();
        upload.send_all(futures::stream::repeat_with(|| filled(1, 300))).await.unwrap();
        assert_eq!(upload.finish().await, Ok(300));
    });
    assert_eq!(store.live.load(Ordering::Relaxed), 0);
    world.assert_clean();
}

#[test]
fn a_dropped_upload_drops_its_handler() {
    for seed in 0..100 {
        let (world, kv, store) = serve(seed);
        world.run(async {
            let mut upload = kv.upload("n".into()).await.unwrap();
            for _ in 0..seed {
                upload.send(&filled(1, 5_000)).await.unwrap();
            }
        });
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
        // A send that was dropped while it waited leaves the stream usable.
        world.run(async {
            let mut upload = kv.upload("n".into()).await.unwrap();
            let (mut sent, item) = (0, filled(1, 2_000));
            for _ in 0..200 {
                let mut send = pin!(upload.send(&item));
                let once = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(send.as_mut().poll(cx).is_ready())
                });
                sent += u64::from(once.await);
            }
            assert!(sent < 200);
            assert!(upload.finish().await.unwrap() >= sent * 2_000);
        });
        world.assert_clean();
    }
}

#[test]
fn an_upload_whose_calls_fail_ends_with_the_failure() {
    let (mut complete, mut failed) = (0, 0);
    for seed in 0..300 {
        let (world, kv, store) = serve(seed);
        world.state.borrow_mut().failures = 3_000;
        let result = world.run(async {
            let mut upload = kv.upload("n".into()).await?;
            for _ in 0..1_000 {
                upload.send(&filled(1, 500)).await?;
            }
            upload.finish().await
        });
        match result {
            Ok(500_000) => complete += 1,
            Err(
                RpcError::Call(CallFailure::Failed(_))
                | RpcError::MidStream(MidStreamError::Call(CallFailure::Failed(_))),
            ) => failed += 1,
            other => panic!("{other:?}"),
        }
        world.state.borrow_mut().failures = 0;
        world.assert_clean();
        assert_eq!(store.live.load(Ordering::Relaxed), 0);
    }
    assert!(complete > 20 && failed > 20, "{complete} {failed}");
}
