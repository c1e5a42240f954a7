//! Calls of a client, on an endpoint's own thread: in production and in the simulator.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use courser::{CallError, CallFailure, Executed, Local, RejectReason, Session};

use crate::index::{Full, Sum};
use crate::message::{
    DELETE, FULL, GET, PUT, SCAN, entry_bytes, key, nth_key, nth_value, number_and_count_bytes, sum,
};

/// Calls that are outstanding while keys are loaded.
const OUTSTANDING: u64 = 64;

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A call failed.
    #[error("{}", text(.0))]
    Call(#[from] CallFailure),
    /// A put of many failed.
    #[error("a put failed after {loaded} keys: {}, and load again", text(.cause))]
    Load {
        /// Keys whose puts were answered.
        loaded: u64,
        /// The failure of the first put that failed.
        cause: CallFailure,
    },
    /// The index is full.
    #[error(transparent)]
    Full(#[from] Full),
    /// The answer is none of an index.
    #[error(
        "the server's answer has {0} bytes, which no answer of an index has; check the address"
    )]
    Answer(usize),
}

/// The text of a failure: the library's names its functions where a session is lost.
fn text(failure: &CallFailure) -> String {
    use CallError::{NotConnected, PeerFailed};
    match failure {
        CallFailure::Failed(NotConnected(_) | PeerFailed(_))
        | CallFailure::Rejected(RejectReason::NoSession(_)) => {
            let executed = failure.executed();
            format!("the session with the server has ended ({executed}); see that the server runs")
        }
        failure => failure.to_string(),
    }
}

impl ClientError {
    /// Returns whether the operation was carried out.
    pub fn executed(&self) -> Executed {
        match self {
            ClientError::Call(failure) | ClientError::Load { cause: failure, .. } => {
                failure.executed()
            }
            ClientError::Full(_) => Executed::Never,
            ClientError::Answer(_) => Executed::Yes,
        }
    }
}

/// A client with one session. Calls may be concurrent; clones share the session.
#[derive(Clone, Debug)]
pub struct Client {
    session: Session,
    deadline: Duration,
}

impl Client {
    /// A client of a server. `deadline` is the longest time of a call.
    pub fn new(session: Session, deadline: Duration) -> Client {
        Client { session, deadline }
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(
        local: &Local,
        uri: &str,
        deadline: Duration,
    ) -> Result<Client, courser::SessionError> {
        Ok(Client::new(local.connect(uri).await?, deadline))
    }

    async fn call<R>(
        &self,
        kind: u16,
        bytes: &[u8],
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<R, ClientError> {
        let request = self.session.local().alloc_recycled(bytes.len());
        let mut request = request.map_err(CallFailure::from)?;
        request.copy_from_slice(bytes);
        let response = self.session.call(kind, request).deadline(self.deadline).await?;
        read(&response).ok_or(ClientError::Answer(response.len()))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The call failed.
    pub async fn get(&self, of: u64) -> Result<Option<u64>, ClientError> {
        let read = |bytes: &[u8]| if bytes.is_empty() { Some(None) } else { key(bytes).map(Some) };
        self.call(GET, &of.to_le_bytes(), read).await
    }

    /// Stores a value. Returns whether it replaced one.
    ///
    /// # Errors
    /// The call failed. The value may be stored nevertheless ([`ClientError::executed`]). A repetition is
    /// another put: a value that was stored in between is replaced.
    pub async fn put(&self, key: u64, value: u64) -> Result<bool, ClientError> {
        let read = |bytes: &[u8]| match bytes {
            [FULL] => Some(Err(Full)),
            bytes => flag(bytes).map(Ok),
        };
        Ok(self.call(PUT, &entry_bytes(key, value), read).await??)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// The call failed. The key may be removed nevertheless ([`ClientError::executed`]).
    pub async fn delete(&self, key: u64) -> Result<bool, ClientError> {
        self.call(DELETE, &key.to_le_bytes(), flag).await
    }

    /// The sum of the values of a key and its successors.
    ///
    /// # Errors
    /// The call failed.
    pub async fn scan(&self, from: u64, count: u32) -> Result<Sum, ClientError> {
        self.call(SCAN, &number_and_count_bytes(from, count), sum).await
    }

    /// Puts the first keys of [`nth_key`], many at a time. `progress` gets the number of loaded keys.
    ///
    /// # Errors
    /// A call failed, or the index is full. The keys before it may be there.
    pub async fn load(&self, keys: u64, progress: impl FnMut(u64)) -> Result<(), ClientError> {
        let loading = Loading {
            client: self,
            keys,
            begun: Cell::new(0),
            loaded: Cell::new(0),
            failed: RefCell::default(),
            progress: RefCell::new(progress),
        };
        let puts = (0..keys.min(OUTSTANDING)).map(|_| loading.puts());
        futures::future::join_all(puts).await;
        loading.failed.into_inner().map_or(Ok(()), Err)
    }
}

/// Keys that are being loaded, by several futures.
struct Loading<'a, P> {
    client: &'a Client,
    keys: u64,
    begun: Cell<u64>,
    loaded: Cell<u64>,
    /// The first failure; no more puts begin after it.
    failed: RefCell<Option<ClientError>>,
    progress: RefCell<P>,
}

impl<P: FnMut(u64)> Loading<'_, P> {
    /// Puts one key after the other.
    async fn puts(&self) {
        while self.begun.get() < self.keys && self.failed.borrow().is_none() {
            let n = self.begun.replace(self.begun.get() + 1);
            if let Err(error) = self.client.put(nth_key(n), nth_value(n)).await {
                self.failed.borrow_mut().get_or_insert(match error {
                    ClientError::Call(cause) => {
                        ClientError::Load { loaded: self.loaded.get(), cause }
                    }
                    error => error,
                });
                return;
            }
            self.loaded.set(self.loaded.get() + 1);
            (self.progress.borrow_mut())(self.loaded.get());
        }
    }
}

/// Reads an answer of one byte.
fn flag(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}
