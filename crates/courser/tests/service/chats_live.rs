//! Streams each way over sockets: on workers, in place, on tokio, and on the thread of an endpoint.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use courser::service::{
    Duplex, DuplexSender, MidStreamError, Postcard, RpcError, ServiceStats, StreamError, Streaming,
};
use courser::{
    CallError, CallFailure, Client, Config, Executed, Nexus, Server, ServerHandle, Serving,
};
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{join, join_all};

use crate::chat::{ChatClient, ChatError, ChatServer, Note, Room, Rooms};
use crate::kv::filled;
use crate::world::until;

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Much longer than a chat without notes needs to end at a shutdown, and much shorter than the grace.
const SOON: Duration = Duration::from_secs(20);

type Failed = RpcError<ChatError>;

/// A server, and what a test sees of it.
struct Running {
    uri: String,
    client: ChatClient,
    rooms: Rooms,
    stats: Box<dyn Fn() -> ServiceStats>,
    handle: ServerHandle,
    serving: Serving,
}

impl Running {
    fn start(change: impl FnOnce(Server) -> Server) -> Running {
        Running::with(Config { workers: 2, slots: 32, ..Config::default() }, change)
    }

    fn with(config: Config, change: impl FnOnce(Server) -> Server) -> Running {
        let rooms = Rooms::default();
        let server = change(Server::bind_with("udp://127.0.0.1:0", config).unwrap());
        let server = server.add_service(ChatServer::new(rooms.clone())).unwrap();
        let (uri, stats) = (server.local_uri(), Box::new(server.service_stats()));
        let serving = server.serve().unwrap();
        let channel = Client::connect(&uri).wait().unwrap();
        let client = block_on(ChatClient::new(channel)).unwrap();
        let handle = serving.handle();
        Running { uri, client, rooms, stats, handle, serving }
    }

    fn is_left_by_all(&self) {
        until(|| self.rooms.live() == 0 && (self.stats)().streams == 0);
    }
}

fn on_each_server(test: impl Fn(Running)) {
    test(Running::start(Server::on_workers));
    test(Running::start(|server| server.in_place(true).endpoints(2)));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).build().unwrap();
        test(Running::start(|server| server.on_tokio(runtime.handle().clone())));
    }
}

/// Sends notes and reads their answers, with both halves in one task.
async fn talk(client: &ChatClient, notes: u64) -> Result<(), Failed> {
    let chat = client.chat(Room::Echo).deadline(PATIENCE).await?;
    let (mut sender, mut receiver) = chat.split();
    let sends = async {
        for n in 0..notes {
            sender.send(&(n, filled(n, 500))).await?;
        }
        sender.finish().await
    };
    let reads = async {
        for n in 0..notes {
            assert_eq!(receiver.next().await, Some(Ok((n, filled(n, 500)))));
        }
        assert_eq!(receiver.next().await, None);
    };
    join(sends, reads).await.0
}

#[test]
fn a_hundred_chats_are_open_at_once_on_each_server() {
    on_each_server(|running| {
        let client = &running.client;
        block_on(async {
            let open = (0..100).map(|_| async {
                let mut chat = client.chat(Room::Echo).deadline(PATIENCE).await?;
                chat.send(&(1, String::new())).await?;
                assert_eq!(chat.next().await, Some(Ok((1, String::new()))));
                Ok::<_, Failed>(chat)
            });
            let open: Vec<_> = join_all(open).await.into_iter().map(Result::unwrap).collect();
            assert_eq!((running.stats)().streams, 100);
            let talks = join_all((0..20).map(|_| talk(client, 200))).await;
            talks.into_iter().for_each(Result::unwrap);
            let again = open.into_iter().map(|mut chat| async move {
                chat.send(&(2, String::new())).await?;
                assert_eq!(chat.next().await, Some(Ok((2, String::new()))));
                assert_eq!(chat.finish().next().await, None);
                Ok::<_, Failed>(())
            });
            join_all(again).await.into_iter().for_each(Result::unwrap);
        });
        running.is_left_by_all();
        running.handle.stop();
        running.serving.wait().unwrap();
    });
}

#[test]
fn a_chat_works_with_four_slots_of_a_session() {
    let config = Config { slots: 4, ..Config::default() };
    let running = Running::with(config, Server::on_workers);
    block_on(talk(&running.client, 2_000)).unwrap();
    running.is_left_by_all();
}

#[test]
fn a_chat_works_on_the_thread_of_an_endpoint() {
    let (sent, received) = channel();
    let serving = thread::spawn(move || {
        let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
        let mut rpc = nexus.endpoint().unwrap();
        rpc.add_service(ChatServer::local(Rooms::default())).unwrap();
        sent.send((nexus.local_uri(), rpc.handle())).unwrap();
        rpc.run().unwrap();
    });
    let (uri, handle) = received.recv().unwrap();
    let channel = Client::connect(&uri).wait().unwrap();
    block_on(talk(&ChatClient::unchecked(channel), 2_000)).unwrap();
    handle.stop();
    serving.join().unwrap();
}

#[cfg(feature = "tokio")]
#[test]
fn the_halves_of_chats_are_tasks_of_their_own_on_tokio() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    let running = Running::start(|server| server.on_tokio(runtime.handle().clone()));
    let client = running.client.clone();
    runtime.block_on(async move {
        let mut tasks = Vec::new();
        for _ in 0..30 {
            let chat = client.chat(Room::Echo).deadline(PATIENCE).await.unwrap();
            let (mut sender, mut receiver) = chat.split();
            tasks.push(tokio::spawn(async move {
                for n in 0..1_000 {
                    sender.send(&(n, filled(n, 200))).await.unwrap();
                }
                sender.finish().await.unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                for n in 0..1_000 {
                    assert_eq!(receiver.next().await, Some(Ok((n, filled(n, 200)))));
                }
                assert_eq!(receiver.next().await, None);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    running.is_left_by_all();
}

#[test]
fn chats_and_their_halves_are_send_with_clients_that_are() {
    fn is_send<T: Send + Sync + 'static>() {}
    is_send::<Duplex<Client, Postcard, Note, Note, ChatError>>();
    is_send::<DuplexSender<Client, Postcard, Note, ChatError>>();
    is_send::<Streaming<Client, Postcard, Note, ChatError>>();
}

#[test]
fn a_shutdown_ends_both_halves_and_names_the_items_that_were_read() {
    on_each_server(|running| {
        let Running { client, rooms, handle, stats, serving, .. } = running;
        block_on(async {
            let (mut sender, mut receiver) = client.chat(Room::Echo).await.unwrap().split();
            for n in 0..5 {
                sender.send(&(n, String::new())).await.unwrap();
                receiver.next().await.unwrap().unwrap();
            }
            // Its client reads nothing.
            let mut stalls = client.chat(Room::Loud).await.unwrap();
            stalls.next().await.unwrap().unwrap();
            let begin = Instant::now();
            handle.shutdown(PATIENCE);
            let ended = receiver.next().await.unwrap().unwrap_err();
            assert_eq!(ended, MidStreamError::ShuttingDown { items: 5 }.into());
            assert_eq!(ended.executed(), Executed::Maybe);
            assert_eq!(receiver.next().await, None);
            let closed = Err(MidStreamError::Closed.into());
            assert_eq!(sender.send(&(9, String::new())).await, closed);
            // A client that began to read would keep its stream flowing, if a batch was on its way
            // when the server looked at it first.
            until(|| stats().streams == 0);
            let mut items = 1;
            let named = loop {
                match stalls.next().await.unwrap() {
                    Ok(_) => items += 1,
                    Err(RpcError::MidStream(MidStreamError::ShuttingDown { items })) => {
                        break items;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            };
            assert_eq!(named, items);
            assert!(begin.elapsed() < SOON);
        });
        serving.wait().unwrap();
        until(|| rooms.live() == 0 && rooms.cancelled() == 2);
    });
}

#[test]
fn a_deadline_ends_both_halves_and_drops_the_handler() {
    on_each_server(|running| {
        let client = &running.client;
        let deadline = Duration::from_millis(300);
        block_on(async {
            let chat = client.chat(Room::Deaf).deadline(deadline).await.unwrap();
            let (mut sender, mut receiver) = chat.split();
            let sends = async {
                loop {
                    if let Err(e) = sender.send(&(1, filled(1, 5_000))).await {
                        break e;
                    }
                }
            };
            let (failed, read) = join(sends, receiver.next()).await;
            let is_late = |e: &CallFailure| {
                matches!(
                    e,
                    CallFailure::Failed(CallError::DeadlineExceeded(_) | CallError::Server(_))
                )
            };
            let Some(Err(RpcError::Call(read))) = read else { panic!("{read:?}") };
            assert!(is_late(&read), "{read:?}");
            // The server's refusal of the next batch may arrive first.
            match failed {
                RpcError::MidStream(MidStreamError::Call(e)) => assert!(is_late(&e), "{e:?}"),
                e => assert_eq!(e, MidStreamError::Closed.into()),
            }
        });
        running.is_left_by_all();
        until(|| running.rooms.cancelled() == 1);
        running.handle.stop();
        running.serving.wait().unwrap();
    });
}

/// Long enough to open a chat, and a time that a test waits for.
const LATE: Duration = Duration::from_secs(1);

#[test]
fn a_chat_that_a_handler_polls_does_not_end_at_the_deadline_of_the_handler() {
    let running = Running::start(Server::on_workers);
    let client = &running.client;
    block_on(async {
        let limited = client.chat(Room::Deaf).deadline(LATE).await.unwrap();
        let context = running.rooms.contexts.lock().unwrap()[0].clone();
        let (mut sender, mut receiver) = client.chat(Room::Echo).await.unwrap().split();
        let mut upload = client.chat(Room::Deaf).await.unwrap();
        context
            .scope(async {
                // A pull, and pushes that are not all answered.
                assert!(receiver.next().now_or_never().is_none());
                for n in 0..4 {
                    upload.send(&(n, String::new())).await.unwrap();
                }
            })
            .await;
        thread::sleep(LATE + Duration::from_millis(100));
        assert_eq!(receiver.next().now_or_never(), None);
        sender.send(&(1, String::new())).await.unwrap();
        assert_eq!(receiver.next().await, Some(Ok((1, String::new()))));
        assert_eq!(upload.flush().now_or_never(), None);
        drop(limited);
    });
}

/// The same with a session of the endpoint of the handler.
#[test]
fn a_chat_on_a_session_does_not_end_at_the_deadline_of_the_handler_that_polls_it() {
    let running = Running::start(Server::on_workers);
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let mut rpc = nexus.endpoint().unwrap();
    let rooms = Rooms::default();
    rpc.add_service(ChatServer::local(rooms.clone())).unwrap();
    let (uri, own) = (running.uri.clone(), nexus.local_uri());
    let limited = thread::spawn(move || {
        let client = ChatClient::unchecked(Client::connect(&own).wait().unwrap());
        block_on(async { client.chat(Room::Deaf).deadline(LATE).await?.next().await.unwrap() })
    });
    let local = rpc.local();
    rpc.block_on(async move {
        while rooms.contexts.lock().unwrap().is_empty() {
            local.sleep(Duration::from_millis(1)).await;
        }
        let context = rooms.contexts.lock().unwrap()[0].clone();
        let client = ChatClient::unchecked(local.connect(&uri).await.unwrap());
        let mut chat = client.chat(Room::Echo).await.unwrap();
        context.scope(async { assert!(chat.next().now_or_never().is_none()) }).await;
        local.sleep(LATE + Duration::from_millis(100)).await;
        assert_eq!(chat.next().now_or_never(), None);
        chat.send(&(1, String::new())).await.unwrap();
        assert_eq!(chat.next().await, Some(Ok((1, String::new()))));
    })
    .unwrap();
    assert!(matches!(limited.join().unwrap(), Err(RpcError::Call(_))));
}

#[test]
fn a_lost_server_ends_both_halves() {
    let running = Running::start(Server::on_workers);
    block_on(async {
        let (mut sender, mut receiver) = running.client.chat(Room::Deaf).await.unwrap().split();
        sender.send(&(1, String::new())).await.unwrap();
        running.handle.stop();
        running.serving.wait().unwrap();
        let read = receiver.next().await.unwrap().unwrap_err();
        assert!(matches!(read, RpcError::Call(_)), "{read:?}");
        let sent = loop {
            if let Err(e) = sender.send(&(1, filled(1, 5_000))).await {
                break e;
            }
        };
        assert!(matches!(sent, RpcError::MidStream(MidStreamError::Call(_))), "{sent:?}");
        assert_eq!(sender.finish().await, Err(MidStreamError::Closed.into()));
    });
}

#[test]
fn a_chat_is_one_of_the_streams_that_a_client_may_have() {
    let config = Config { max_streams_per_peer: 2, ..Config::default() };
    let running = Running::with(config, |server| server);
    let client = &running.client;
    block_on(async {
        let one = client.chat(Room::Echo).await.unwrap();
        let (sender, receiver) = client.chat(Room::Echo).await.unwrap().split();
        let refused = client.chat(Room::Echo).await.unwrap_err();
        assert_eq!(refused, RpcError::Stream(StreamError::Limit));
        assert_eq!(refused.executed(), Executed::Never);
        drop(sender);
        drop((one, receiver));
    });
    running.is_left_by_all();
    assert!(block_on(async { client.chat(Room::Echo).await }).is_ok());
}

#[test]
fn a_chat_is_opened_with_metadata() {
    let running = Running::start(Server::on_workers);
    block_on(async {
        let chat = running.client.chat(Room::Echo).metadata("tenant", "blue").await.unwrap();
        let context = running.rooms.contexts.lock().unwrap()[0].clone();
        assert_eq!(context.metadata().text("tenant"), Some("blue"));
        assert_eq!(chat.finish().next().await, None);
    });
    running.is_left_by_all();
}
