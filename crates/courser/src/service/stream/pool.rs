//! The sessions of a client's streams: those that are kept for the next streams, and those of streams that
//! the server has accepted.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use courser_buf::MsgBuf;

use crate::channel::Channel;
use crate::channel::method::Numbers;

/// Sessions without a stream that are kept for the next ones.
const MAX_IDLE: usize = 8;

/// The sessions of a client's streams.
pub(crate) struct Pool<C> {
    idle: Mutex<Vec<Idle<C>>>,
    /// The number of the next stream.
    next: AtomicU32,
}

/// A session, and the request types that its server has assigned to the methods. `None`: the
/// connection knows them.
pub(super) type Idle<C> = (C, Option<Numbers>);

impl<C> Default for Pool<C> {
    fn default() -> Self {
        Pool { idle: Mutex::default(), next: AtomicU32::new(0) }
    }
}

impl<C: Channel> Pool<C> {
    /// The number of the next stream.
    pub(super) fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A session that was used before.
    pub(super) fn take(&self) -> Option<Idle<C>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|(channel, _)| channel.is_usable())
    }
}

/// The way back of a stream's session to its pool.
pub(super) struct Return<C> {
    pool: Arc<Pool<C>>,
    numbers: Option<Numbers>,
}

impl<C: Channel> Return<C> {
    pub(super) fn new(pool: &Arc<Pool<C>>, numbers: Option<Numbers>) -> Self {
        Return { pool: pool.clone(), numbers }
    }

    /// Returns the session of a stream that has ended.
    pub(super) fn put(&self, channel: C) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && channel.is_usable() {
            idle.push((channel, self.numbers.clone()));
        }
    }
}

/// A stream that the server has accepted, or that has ended.
pub(super) struct Opened<C: Channel> {
    pub(super) channel: C,
    pub(super) pool: Return<C>,
    pub(super) stream: u32,
    pub(super) open: OpenCall<C>,
}

/// The open call of a stream.
pub(super) enum OpenCall<C: Channel> {
    Running(C::OwnedCall),
    Answered(MsgBuf),
}
