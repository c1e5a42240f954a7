//! Streams each way.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use courser::service::{Incoming, LocalService, MidStreamError, RpcError, Stream};
use courser::{CallError, CallFailure, Executed};
use futures::future::{join, join_all, poll_fn};
use futures::{FutureExt, StreamExt, stream};

use crate::chat::{ChatClient, ChatError, Note, Room, serve};
use crate::kv::filled;
use crate::world::{Session, World};

/// Bytes of both ends: of each direction two batches that wait, one that is filled and two on the way, and
/// an item, each batch in a buffer of 80 KiB.
const HELD: usize = 10 * (81 << 10) + (64 << 10);

pub fn note(n: u64, len: usize) -> Note {
    (n, filled(n, len))
}

pub fn closed<T: PartialEq + std::fmt::Debug>(result: &Result<T, RpcError<ChatError>>) {
    assert_eq!(*result, Err(RpcError::MidStream(MidStreamError::Closed)));
}

#[test]
fn a_chat_used_whole_answers_each_note_in_order() {
    for seed in 0..100 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            let deadline = Duration::from_secs(9);
            let mut chat = client.chat(Room::Echo).deadline(deadline).await.unwrap();
            let (mut sent, mut read) = (0, 0);
            for burst in 1..20 + seed {
                for _ in 0..burst % 7 {
                    chat.send(&note(sent, 300)).await.unwrap();
                    sent += 1;
                }
                while read < sent {
                    assert_eq!(chat.next().await, Some(Ok(note(read, 300))), "seed {seed}");
                    read += 1;
                }
            }
            chat.send(&note(7, 5)).await.unwrap();
            let mut rest = chat.finish();
            assert_eq!(rest.next().await, Some(Ok(note(7, 5))));
            assert_eq!(rest.next().await, None);
            assert_eq!(rest.next().await, None);
        });
        assert!(world.state.borrow().deadlines.contains(&Some(Duration::from_secs(9))));
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

/// Sends notes and reads their answers at the same time.
async fn talk(client: &ChatClient<Session>, notes: u64, len: usize) {
    let (mut sender, mut receiver) = client.chat(Room::Echo).await.unwrap().split();
    let sends = async {
        for n in 0..notes {
            sender.send(&note(n, len)).await.unwrap();
        }
        sender.finish().await.unwrap();
    };
    let reads = async {
        for n in 0..notes {
            assert_eq!(receiver.next().await, Some(Ok(note(n, len))));
        }
        assert_eq!(receiver.next().await, None);
    };
    join(sends, reads).await;
}

#[test]
fn a_split_chat_keeps_the_order_in_each_direction() {
    for seed in 0..100 {
        let (world, client, rooms) = serve(seed);
        world.run(talk(&client, seed * 20, (seed % 9 * 800) as usize));
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

#[test]
fn a_chat_of_100_000_notes_each_way_takes_constant_memory() {
    let (world, client, _) = serve(5);
    let held = Cell::new(0);
    let mut talk = pin!(talk(&client, 100_000, 300));
    world.run(poll_fn(|cx| {
        held.set(held.get().max(world.services.stats().stream_bytes));
        talk.as_mut().poll(cx)
    }));
    let peak = world.arena.stats().peak_in_use_bytes;
    assert!(peak <= HELD, "{peak} bytes");
    // Two batches that wait, and the one that is filled.
    assert!(held.get() > 0 && held.get() <= 3 * (81 << 10), "{} bytes", held.get());
    world.assert_clean();
}

#[test]
fn many_chats_at_once_do_not_mix_and_their_sessions_are_used_again() {
    let (world, client, _) = serve(6);
    world.run(join_all((0..40).map(|n| talk(&client, n * 10, n as usize * 50))));
    let sessions = world.session().number;
    for _ in 0..20 {
        world.run(talk(&client, 3, 3));
    }
    assert_eq!(world.session().number, sessions + 1);
    assert_eq!(world.services.stats().streams_opened, 60);
    world.assert_clean();
}

#[test]
fn the_server_sends_on_after_the_end_of_the_clients_items() {
    for seed in 0..50 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            // More than what is on the way: the handler takes it before anything is read.
            let mut chat = client.chat(Room::Count).await.unwrap();
            for n in 0..1_000 {
                chat.send(&note(n, 1_000)).await.unwrap();
            }
            chat.flush().await.unwrap();
            chat.flush().await.unwrap();
            let mut rest = chat.finish();
            assert_eq!(rest.next().await, Some(Ok((1_000, String::new()))), "seed {seed}");
            assert_eq!(rest.next().await, None);
            let (mut sender, mut receiver) = client.chat(Room::Count).await.unwrap().split();
            let notes = stream::iter((0..500).map(|n| note(n, 900)));
            sender.send_all(notes).await.unwrap();
            sender.finish().await.unwrap();
            assert_eq!(receiver.next().await, Some(Ok((500, String::new()))));
            assert_eq!(receiver.next().await, None);
        });
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

#[test]
fn a_handler_that_ends_first_closes_the_sender() {
    for seed in 0..50 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            for room in [Room::Leave(3), Room::Fail(3)] {
                let end =
                    (room == Room::Fail(3)).then_some(Err(RpcError::Service(ChatError::Closed)));
                let (mut sender, mut receiver) = client.chat(room).await.unwrap().split();
                let reads = async {
                    assert_eq!(receiver.next().await, end, "seed {seed}");
                    assert_eq!(receiver.next().await, None);
                };
                let sends = async {
                    let refused = loop {
                        let sent = sender.send(&note(1, 900)).await;
                        if sent.is_err() {
                            break sent;
                        }
                    };
                    closed(&refused);
                    closed(&sender.send(&note(1, 1)).await);
                    closed(&sender.flush().await);
                    closed(&sender.finish().await);
                };
                join(reads, sends).await;
            }
            // The number of notes that it takes is that of those that are sent.
            let (mut sender, mut receiver) = client.chat(Room::Leave(3)).await.unwrap().split();
            let reads = async {
                assert_eq!(receiver.next().await, None);
            };
            let sends = async {
                for n in 0..3 {
                    sender.send(&note(n, 10)).await.unwrap();
                    sender.flush().await.unwrap();
                }
                sender.finish().await
            };
            assert_eq!(join(reads, sends).await.1, Ok(()), "seed {seed}");
        });
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

#[test]
fn a_handler_that_takes_no_more_notes_goes_on_to_send() {
    for seed in 0..50 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            let mut chat = client.chat(Room::Talk(5)).await.unwrap();
            for n in 0..5 {
                chat.send(&note(n, 10)).await.unwrap();
            }
            // Its own first item is there after it has taken the notes.
            assert_eq!(chat.next().await, Some(Ok((0, String::new()))));
            let (mut sender, mut receiver) = chat.split();
            let refused = loop {
                let sent = sender.send(&note(1, 900)).await;
                if sent.is_err() {
                    break sent;
                }
            };
            closed(&refused);
            // The sender is not needed for the other direction.
            drop(sender);
            for n in 1..5 {
                assert_eq!(receiver.next().await, Some(Ok((n, String::new()))));
            }
            assert_eq!(receiver.next().await, None, "seed {seed}");
        });
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

fn cancelled(end: Option<Result<Note, RpcError<ChatError>>>) {
    let error = end.expect("an end").unwrap_err();
    let failure = CallFailure::Failed(CallError::Cancelled(Executed::Maybe));
    assert_eq!(error, RpcError::Call(failure));
    assert_eq!(error.executed(), Executed::Maybe);
}

#[test]
fn a_dropped_half_cancels_the_chat_and_ends_the_other_half() {
    for seed in 0..100 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            let (mut sender, mut receiver) = client.chat(Room::Echo).await.unwrap().split();
            for n in 0..seed {
                sender.send(&note(n, 200)).await.unwrap();
            }
            let ends = async {
                loop {
                    match receiver.next().await {
                        Some(Ok(_)) => {}
                        end => break end,
                    }
                }
            };
            let drops = async {
                for _ in 0..seed % 5 {
                    crate::kv::yields().await;
                }
                drop(sender);
            };
            cancelled(join(ends, drops).await.0);
            assert_eq!(receiver.next().await, None);

            let (mut sender, receiver) = client.chat(Room::Deaf).await.unwrap().split();
            let refused = async {
                loop {
                    let sent = sender.send(&note(1, 9_000)).await;
                    if sent.is_err() {
                        break sent;
                    }
                }
            };
            let drops = async {
                crate::kv::yields().await;
                drop(receiver);
            };
            closed(&join(refused, drops).await.0);
            closed(&sender.flush().await);
        });
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

#[test]
fn a_thousand_cancelled_chats_leave_nothing() {
    let (mut begun, mut opened) = (0, 0);
    for seed in 0..1_000_u64 {
        let (world, client, rooms) = serve(seed);
        let random = |below| world.state.borrow_mut().random(below);
        let room = [Room::Echo, Room::Loud, Room::Deaf, Room::Count][random(4) as usize];
        let mut opening = Box::pin(client.chat(room).into_future());
        let steps = random(30);
        let polled =
            |future: &mut dyn FnMut() -> bool| (0..steps).any(|_| future() || !world.step());
        polled(&mut || {
            (&mut opening).now_or_never().is_some_and(|chat| {
                opened += 1;
                let (mut sender, mut receiver) = chat.unwrap().split();
                let notes = random(60);
                let sends = async {
                    for n in 0..notes {
                        sender.send(&note(n, 3_000)).await.unwrap();
                    }
                    std::future::pending::<()>().await;
                };
                let reads = async { while receiver.next().await.is_some() {} };
                let mut both = Box::pin(join(sends, reads));
                for _ in 0..random(200) {
                    let _ = (&mut both).now_or_never();
                    world.step();
                }
                drop(both);
                begun += u64::from(rooms.live() > 0);
                match random(4) {
                    0 => drop(sender),
                    1 => drop(receiver),
                    2 => drop((sender, receiver)),
                    _ => drop((receiver, sender)),
                }
                true
            })
        });
        drop(opening);
        world.assert_clean();
        assert_eq!(rooms.live(), 0, "seed {seed}");
    }
    assert!(opened > 300 && begun > 300, "{opened} {begun}");
}

#[test]
fn a_client_that_does_not_read_holds_the_stated_bytes_and_its_notes_go_on() {
    let (world, client, rooms) = serve(8);
    let mut chat = world.run(async {
        let mut chat = client.chat(Room::Loud).await.unwrap();
        assert_eq!(chat.next().await.unwrap().unwrap().0, 0);
        chat
    });
    world.settle();
    let made = rooms.made.load(std::sync::atomic::Ordering::Relaxed);
    assert!(made < 5 * 66, "{made} items");
    for _ in 0..100 {
        assert_eq!(world.run(async { client.ping().await }), Ok(1));
    }
    // Nothing takes the notes: two batches are on the way, and a third one is filled.
    let sent = Cell::new(0);
    let mut sending = Box::pin(async {
        loop {
            chat.send(&note(1, 1_000)).await.unwrap();
            sent.set(sent.get() + 1);
        }
    });
    assert!(world.try_run(&mut sending).is_none());
    drop(sending);
    assert!((60..250).contains(&sent.get()), "{} notes", sent.get());
    assert_eq!(rooms.made.load(std::sync::atomic::Ordering::Relaxed), made);
    let held = world.arena.stats().in_use_bytes;
    assert!(held <= HELD, "{held} bytes");
    // The other direction goes on where it was.
    world.run(async {
        for n in 1..5_000 {
            assert_eq!(chat.next().await.unwrap().unwrap().0, n);
        }
    });
    drop(chat);
    world.assert_clean();

    // A handler that takes notes while its own first item is not read.
    let mut chat = world.run(async { client.chat(Room::Count).await.unwrap() });
    world.run(async {
        for n in 0..2_000 {
            chat.send(&note(n, 1_000)).await.unwrap();
        }
    });
    assert!(rooms.taken.load(std::sync::atomic::Ordering::Relaxed) > 1_500);
    drop(chat);
    world.assert_clean();
}

#[test]
fn errors_of_opening_a_chat_are_those_of_its_await() {
    for seed in 0..50 {
        let (world, client, rooms) = serve(seed);
        world.run(async {
            let error = client.chat(Room::Shut).await.unwrap_err();
            assert_eq!(error, RpcError::Service(ChatError::Closed));
            // A stream that has ended before its first item is no error.
            let mut chat = client.chat(Room::Empty).await.unwrap();
            closed(&chat.send(&note(1, 1)).await);
            assert_eq!(chat.next().await, None);
            drop(chat);
            let mut rest = client.chat(Room::Empty).await.unwrap().finish();
            assert_eq!(rest.next().await, None);
        });
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
}

#[test]
fn an_item_that_is_too_large_is_refused_and_others_are_sent() {
    let (world, client, _) = serve(4);
    world.run(async {
        let mut chat = client.chat(Room::Echo).await.unwrap();
        chat.send(&note(1, 10)).await.unwrap();
        let error = chat.send(&note(2, 9 << 20)).await.unwrap_err();
        assert!(matches!(error, RpcError::MidStream(MidStreamError::Encode(_))), "{error:?}");
        chat.send(&note(3, 1_000_000)).await.unwrap();
        let mut rest = chat.finish();
        assert_eq!(rest.next().await, Some(Ok(note(1, 10))));
        assert_eq!(rest.next().await, Some(Ok(note(3, 1_000_000))));
        assert_eq!(rest.next().await, None);
    });
    world.assert_clean();
}

#[test]
fn a_chat_whose_calls_fail_ends_with_the_failure_at_both_halves() {
    let is_failure = |e: &RpcError<ChatError>| {
        matches!(
            e,
            RpcError::Call(CallFailure::Failed(_))
                | RpcError::MidStream(MidStreamError::Call(CallFailure::Failed(_)))
        )
    };
    let (mut complete, mut failed) = (0, 0);
    for seed in 0..300 {
        let (world, client, rooms) = serve(seed);
        world.state.borrow_mut().failures = 400;
        let outcome = world.run(async {
            let (mut sender, mut receiver) = client.chat(Room::Echo).await?.split();
            let sends = async {
                for n in 0..500 {
                    sender.send(&note(n, 1_000)).await?;
                }
                sender.finish().await
            };
            let reads = async {
                let mut read = 0;
                while let Some(item) = receiver.next().await {
                    assert_eq!(item?, note(read, 1_000));
                    read += 1;
                }
                Ok::<_, RpcError<ChatError>>(read)
            };
            let (sent, read) = join(sends, reads).await;
            // Items of a client whose push has failed are missing, so the other half fails, too.
            match &sent {
                Err(e) if is_failure(e) => assert!(read.is_err(), "seed {seed}"),
                Err(e) => assert!(*e == MidStreamError::Closed.into() && read.is_err(), "{e:?}"),
                Ok(()) => {}
            }
            read
        });
        match outcome {
            Ok(500) => complete += 1,
            Err(e) if is_failure(&e) => failed += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
        world.state.borrow_mut().failures = 0;
        world.assert_clean();
        assert_eq!(rooms.live(), 0);
    }
    assert!(complete > 20 && failed > 20, "{complete} {failed}");
}

#[test]
fn a_send_that_is_dropped_while_it_waits_leaves_the_chat_usable() {
    let (world, client, _) = serve(9);
    world.run(async {
        let mut chat = client.chat(Room::Count).await.unwrap();
        let (mut sent, item) = (0, note(1, 2_000));
        for _ in 0..200 {
            let mut send = pin!(chat.send(&item));
            let once = poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_ready()));
            sent += u64::from(once.await);
        }
        assert!(sent < 200);
        let counted = chat.finish().next().await.unwrap().unwrap().0;
        assert!(counted == sent, "{counted} of {sent}");
    });
    world.assert_clean();
}

#[test]
fn a_chat_that_is_not_polled_sends_nothing_more_and_any_half_drives_both() {
    let (world, client, rooms) = serve(10);
    let (mut sender, mut receiver) =
        world.run(client.chat(Room::Echo).into_future()).unwrap().split();
    // Two batches are on the way, and the other notes wait for them.
    world.run(async {
        for n in 0..5 {
            sender.send(&note(n, 10)).await.unwrap();
        }
    });
    world.settle();
    let taken = || rooms.taken.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken() <= 2, "{}", taken());
    // The receiver alone sends them.
    world.run(async {
        for n in 0..5 {
            assert_eq!(receiver.next().await, Some(Ok(note(n, 10))));
        }
    });
    assert_eq!(taken(), 5);
    // The end, too, after the future that waited for it was dropped.
    assert!(sender.finish().now_or_never().is_none());
    assert_eq!(world.run(receiver.next()), None);
    drop(receiver);
    world.assert_clean();
}

/// Neither the service nor its streams are `Send`.
struct Desk(Rc<Cell<u64>>);

#[courser::service]
trait Sums {
    fn sums(&self, numbers: Incoming<u64>, first: u64) -> impl Stream<Item = u64>;
}

impl LocalSums for Desk {
    fn sums(&self, numbers: Incoming<u64>, first: u64) -> impl Stream<Item = u64> {
        let (seen, mut sum) = (self.0.clone(), first);
        numbers.map(move |n| {
            seen.set(seen.get() + 1);
            sum += n.unwrap_or(0);
            sum
        })
    }
}

#[test]
fn chats_of_a_service_without_send_are_the_same() {
    let mut world = World::new(1);
    let seen = Rc::new(Cell::new(0));
    SumsServer::local(Desk(seen.clone())).register_local(&mut world).unwrap();
    let sums = SumsClient::unchecked(world.session());
    world.run(async {
        let mut chat = sums.sums(100).await.unwrap();
        for n in 1..=4 {
            chat.send(&n).await.unwrap();
        }
        let sums: Vec<_> = chat.finish().collect().await;
        assert_eq!(sums, [Ok(101), Ok(103), Ok(106), Ok(110)]);
    });
    assert_eq!(seen.get(), 4);
    world.assert_clean();
}
