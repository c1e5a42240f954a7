//! A service with streams each way, which most tests of such streams use.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use courser::service::{CallContext, Incoming, Service, Stream};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::kv::{Alive, yields};
use crate::world::{Session, World};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ChatError {
    #[error("the room is closed")]
    Closed,
    #[error("a note cannot be read: {0}")]
    Unread(String),
}

/// The ways in which a handler treats the notes of its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Room {
    /// Repeats them.
    Echo,
    /// Takes all, and answers with their number.
    Count,
    /// Takes this number of notes, and ends without an answer.
    Leave(u32),
    /// Takes this number of notes, and ends with an error.
    Fail(u32),
    /// Takes this number of notes, then sends as many without the client's.
    Talk(u32),
    /// Sends endlessly, and takes no note.
    Loud,
    /// Takes one note, and neither takes nor sends another one.
    Deaf,
    /// Ends with an error at once.
    Shut,
    /// Ends without a note.
    Empty,
}

pub type Note = (u64, String);
pub type Items = Pin<Box<dyn Stream<Item = Result<Note, ChatError>> + Send>>;

#[courser::service(codec = Postcard)]
pub trait Chat {
    /// A stream as the room has it.
    fn chat(
        &self,
        room: Room,
        cx: CallContext,
        notes: Incoming<Note>,
    ) -> impl Stream<Item = Result<Note, ChatError>>;
    /// The sum after each number. Neither arguments nor errors.
    fn sums(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64>;
    /// A call beside the streams.
    async fn ping(&self) -> u64;
}

#[derive(Clone, Default)]
pub struct Rooms {
    /// Handlers' streams that exist.
    pub live: Arc<AtomicU64>,
    /// Notes that handlers took.
    pub taken: Arc<AtomicU64>,
    /// Notes that handlers made.
    pub made: Arc<AtomicU64>,
    /// The contexts of chats.
    pub contexts: Arc<Mutex<Vec<CallContext>>>,
}

impl Rooms {
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Contexts of chats that are cancelled.
    pub fn cancelled(&self) -> usize {
        self.contexts.lock().unwrap().iter().filter(|context| context.is_cancelled()).count()
    }

    /// The notes of a client, counted.
    fn notes(&self, notes: Incoming<Note>) -> Items {
        let taken = self.taken.clone();
        Box::pin(notes.map(move |note| {
            taken.fetch_add(1, Ordering::Relaxed);
            note.map_err(|e| ChatError::Unread(e.to_string()))
        }))
    }

    fn items(&self, room: Room, notes: Incoming<Note>) -> Items {
        let notes = self.notes(notes);
        match room {
            Room::Echo => notes,
            Room::Count => {
                let count = notes.fold(0, |count, _| async move {
                    yields().await;
                    count + 1
                });
                Box::pin(stream::once(async move { Ok((count.await, String::new())) }))
            }
            Room::Leave(taken) => after(notes, taken, None),
            Room::Fail(taken) => after(notes, taken, Some(ChatError::Closed)),
            Room::Talk(taken) => {
                let talk = (0..u64::from(taken)).map(|n| Ok((n, String::new())));
                Box::pin(after(notes, taken, None).chain(stream::iter(talk)))
            }
            Room::Loud => {
                let made = self.made.clone();
                let talk = stream::iter(0..).map(move |n| {
                    let _ = &notes;
                    made.fetch_add(1, Ordering::Relaxed);
                    Ok((n, "x".repeat(1_000)))
                });
                Box::pin(talk)
            }
            Room::Deaf => Box::pin(notes.skip(1).filter_map(|_| std::future::pending())),
            Room::Shut => Box::pin(stream::iter([Err(ChatError::Closed)])),
            Room::Empty => Box::pin(stream::empty()),
        }
    }
}

/// Takes notes, and ends.
fn after(notes: Items, taken: u32, error: Option<ChatError>) -> Items {
    let none = notes.take(taken as usize).filter_map(|_| std::future::ready(None));
    Box::pin(none.chain(stream::iter(error.map(Err))))
}

impl Chat for Rooms {
    fn chat(
        &self,
        room: Room,
        cx: CallContext,
        notes: Incoming<Note>,
    ) -> impl Stream<Item = Result<Note, ChatError>> {
        assert_eq!(cx.method(), "chat");
        let alive = Alive::new(&self.live);
        self.contexts.lock().unwrap().push(cx);
        self.items(room, notes).inspect(move |_| {
            let _ = &alive;
        })
    }

    fn sums(&self, numbers: Incoming<u64>) -> impl Stream<Item = u64> {
        let mut sum = 0;
        numbers.map(move |n| {
            sum += n.unwrap_or(0);
            sum
        })
    }

    async fn ping(&self) -> u64 {
        self.live()
    }
}

pub fn serve(seed: u64) -> (World, ChatClient<Session>, Rooms) {
    let mut world = World::new(seed);
    let rooms = Rooms::default();
    ChatServer::new(rooms.clone()).register(&mut world).unwrap();
    let client = world.run(ChatClient::new(world.session())).unwrap();
    (world, client, rooms)
}
