//! A key-value store, the service of most tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use courser::service::{Incoming, Stream};
use futures::stream;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum KvError {
    #[error("no such key")]
    Missing,
    #[error("the key has {0} bytes")]
    TooLong(u32),
}

/// A key-value store.
#[courser::service(codec = Postcard)]
pub trait Kv {
    /// Reads a key.
    async fn get(&self, key: String) -> Result<String, KvError>;
    /// Writes a key.
    async fn put(&self, key: String, value: String) -> Result<(), KvError>;
    /// The number of keys.
    async fn len(&self) -> u64;
    /// Notes that a key will be read.
    #[oneway]
    async fn hint(&self, service: String);
    /// All keys from one on.
    fn scan(&self, from: String) -> impl Stream<Item = Result<(String, String), KvError>>;
    /// Numbers from 0.
    fn count(&self, to: u64, size: u32) -> impl Stream<Item = (u64, String)>;
    /// Adds up lengths.
    async fn upload(&self, name: String, chunks: Incoming<String>) -> Result<u64, KvError>;
    /// Never ends.
    async fn hang(&self);
}

/// As many bytes as stated. A text, because lists of bytes are decoded byte by byte.
pub fn filled(number: u64, bytes: usize) -> String {
    char::from(number as u8 & 0x7f).to_string().repeat(bytes)
}

/// The request type of a method, at a server with this service alone.
pub fn number(method: &str) -> u16 {
    0x4000 + KvClient::SERVICE.methods.iter().position(|m| m.name == method).unwrap() as u16
}

/// A store for any thread.
#[derive(Default)]
pub struct Store {
    pub map: Mutex<BTreeMap<String, String>>,
    pub hints: AtomicU64,
    pub taken: Arc<AtomicU64>,
    pub live: Arc<AtomicU64>,
}

/// Counts itself while it is alive.
pub struct Alive(Arc<AtomicU64>);

impl Alive {
    pub fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Alive(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets other tasks run.
pub async fn yields() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Kv for Store {
    async fn get(&self, key: String) -> Result<String, KvError> {
        yields().await;
        self.map.lock().unwrap().get(&key).cloned().ok_or(KvError::Missing)
    }

    async fn put(&self, key: String, value: String) -> Result<(), KvError> {
        if key.len() > 100 {
            return Err(KvError::TooLong(key.len() as u32));
        }
        self.map.lock().unwrap().insert(key, value);
        Ok(())
    }

    async fn len(&self) -> u64 {
        self.map.lock().unwrap().len() as u64
    }

    async fn hint(&self, _service: String) {
        self.hints.fetch_add(1, Ordering::Relaxed);
    }

    fn scan(&self, from: String) -> impl Stream<Item = Result<(String, String), KvError>> {
        let alive = Alive::new(&self.live);
        let is_late = from != "refuse";
        let found: Vec<_> = match from.as_str() {
            "refuse" => vec![Err(KvError::Missing)],
            "fail" => vec![Ok(("a".into(), "b".into())), Err(KvError::Missing)],
            _ => {
                let map = self.map.lock().unwrap();
                map.range(from..).map(|(k, v)| Ok((k.clone(), v.clone()))).collect()
            }
        };
        stream::unfold((found.into_iter(), alive), move |(mut found, alive)| async move {
            if is_late {
                yields().await;
            }
            found.next().map(|item| (item, (found, alive)))
        })
    }

    fn count(&self, to: u64, size: u32) -> impl Stream<Item = (u64, String)> {
        let (taken, alive) = (self.taken.clone(), Alive::new(&self.live));
        stream::iter((0..to).map(move |i| {
            let _ = &alive;
            taken.fetch_add(1, Ordering::Relaxed);
            // At most twice what a message may have.
            (i, filled(i, (size as usize).min(16 << 20)))
        }))
    }

    async fn upload(&self, name: String, mut chunks: Incoming<String>) -> Result<u64, KvError> {
        let _alive = Alive::new(&self.live);
        if name == "refuse" {
            return Err(KvError::Missing);
        }
        let mut sum = 0;
        while let Some(chunk) = chunks.next().await {
            yields().await;
            let Ok(chunk) = chunk else { return Err(KvError::Missing) };
            sum += chunk.len() as u64;
            self.taken.fetch_add(1, Ordering::Relaxed);
            if name == "early" {
                return Ok(sum);
            }
            if name == "fail" {
                return Err(KvError::TooLong(4));
            }
            if name == "stall" {
                std::future::pending::<()>().await;
            }
        }
        Ok(sum)
    }

    async fn hang(&self) {
        let _alive = Alive::new(&self.live);
        std::future::pending::<()>().await;
    }
}

/// A store for one thread: neither it nor its futures are `Send`.
#[derive(Default)]
pub struct LocalStore {
    pub map: RefCell<BTreeMap<String, String>>,
    pub hints: Rc<Cell<u64>>,
}

impl LocalKv for LocalStore {
    async fn get(&self, key: String) -> Result<String, KvError> {
        let hints = self.hints.clone();
        yields().await;
        hints.set(hints.get() + 1);
        self.map.borrow().get(&key).cloned().ok_or(KvError::Missing)
    }
    async fn put(&self, key: String, value: String) -> Result<(), KvError> {
        self.map.borrow_mut().insert(key, value);
        Ok(())
    }
    async fn len(&self) -> u64 {
        self.map.borrow().len() as u64
    }
    async fn hint(&self, _service: String) {
        self.hints.set(self.hints.get() + 1);
    }
    fn scan(&self, from: String) -> impl Stream<Item = Result<(String, String), KvError>> {
        let shared = self.hints.clone();
        let all: Vec<_> =
            self.map.borrow().range(from..).map(|(k, v)| (k.clone(), v.clone())).collect();
        stream::iter(all.into_iter().map(move |item| {
            shared.set(shared.get() + 1);
            Ok(item)
        }))
    }
    fn count(&self, to: u64, size: u32) -> impl Stream<Item = (u64, String)> {
        stream::iter((0..to).map(move |i| (i, filled(0, size as usize))))
    }
    async fn upload(&self, _name: String, mut chunks: Incoming<String>) -> Result<u64, KvError> {
        let mut sum = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            sum += chunk.len() as u64;
        }
        Ok(sum)
    }
    async fn hang(&self) {}
}
