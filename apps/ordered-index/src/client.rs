//! Single calls, for the command line and for tests.

use std::time::Duration;

use courser::{CallError, CallWaitError, Config, Nexus, Rpc, SessionId};

use crate::index::{Full, Sum};
use crate::message::{
    DELETE, FULL, GET, PUT, SCAN, entry_bytes, key, nth_key, nth_value, number_and_count_bytes, sum,
};

/// Calls that are outstanding while keys are loaded.
const OUTSTANDING: u64 = 64;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// This side cannot be set up.
    #[error(transparent)]
    Bind(#[from] courser::BindError),
    /// There is no session.
    #[error(transparent)]
    Session(#[from] courser::SessionError),
    /// No memory for a request.
    #[error(transparent)]
    Memory(#[from] courser::AllocError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallWaitError),
    /// A call of many failed.
    #[error("a put failed: {0}; look at the server, and load again")]
    Load(CallError),
    /// The index is full.
    #[error(transparent)]
    Full(#[from] Full),
    /// A call did not start.
    #[error(transparent)]
    Rejected(#[from] courser::CallRejected),
    /// The answer is none of an index.
    #[error(
        "the server's answer has {0} bytes, which no answer of an index has; check the address"
    )]
    Answer(usize),
}

/// A client with one session; its calls block.
#[derive(Debug)]
pub struct Client {
    rpc: Rpc,
    session: SessionId,
    deadline: Duration,
}

impl Client {
    /// Connects to a server. `deadline` is the longest time of a call.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(uri: &str, deadline: Duration) -> Result<Client, ClientError> {
        let scheme = uri.split_once("://").map_or("udp", |(scheme, _)| scheme);
        let host = if scheme == "shm" { "127.0.0.1" } else { "0.0.0.0" };
        let nexus = Nexus::bind_with(&format!("{scheme}://{host}:0"), Config::default())?;
        let mut rpc = nexus.endpoint()?;
        let session = rpc.connect(uri)?;
        rpc.wait_connected(session)?;
        Ok(Client { rpc, session, deadline })
    }

    fn call<R>(
        &mut self,
        kind: u16,
        bytes: &[u8],
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<R, ClientError> {
        let mut request = self.rpc.alloc(bytes.len())?;
        request.copy_from_slice(bytes);
        let answered = self.rpc.call_wait(self.session, kind, request, self.deadline)?;
        let len = answered.response.len();
        read(&answered.response).ok_or(ClientError::Answer(len))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The call failed.
    pub fn get(&mut self, of: u64) -> Result<Option<u64>, ClientError> {
        let read = |bytes: &[u8]| if bytes.is_empty() { Some(None) } else { key(bytes).map(Some) };
        self.call(GET, &of.to_le_bytes(), read)
    }

    /// Stores a value. Returns whether it replaced one.
    ///
    /// # Errors
    /// The call failed. It may have been executed nevertheless; repeating it is harmless.
    pub fn put(&mut self, key: u64, value: u64) -> Result<bool, ClientError> {
        let read = |bytes: &[u8]| match bytes {
            [FULL] => Some(Err(Full)),
            bytes => flag(bytes).map(Ok),
        };
        Ok(self.call(PUT, &entry_bytes(key, value), read)??)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// The call failed. It may have been executed nevertheless.
    pub fn delete(&mut self, key: u64) -> Result<bool, ClientError> {
        self.call(DELETE, &key.to_le_bytes(), flag)
    }

    /// The sum of the values of a key and its successors.
    ///
    /// # Errors
    /// The call failed.
    pub fn scan(&mut self, from: u64, count: u32) -> Result<Sum, ClientError> {
        self.call(SCAN, &number_and_count_bytes(from, count), sum)
    }

    /// Puts the first keys of [`nth_key`], many at a time. `progress` gets the number of loaded keys.
    ///
    /// # Errors
    /// A call failed, or the index is full. The keys before it may be there.
    pub fn load(&mut self, keys: u64, mut progress: impl FnMut(u64)) -> Result<(), ClientError> {
        use std::cell::{Cell, RefCell};
        use std::rc::Rc;

        let ended = Rc::new((Cell::new(0_u64), RefCell::new(None)));
        let mut begun = 0;
        while ended.0.get() < keys {
            while begun < keys && begun - ended.0.get() < OUTSTANDING {
                let bytes = entry_bytes(nth_key(begun), nth_value(begun));
                let mut request = self.rpc.alloc_recycled(bytes.len())?;
                request.copy_from_slice(&bytes);
                let of = ended.clone();
                let call = self.rpc.request(self.session, PUT, request).deadline(self.deadline);
                call.then(move |_, done| {
                    of.0.set(of.0.get() + 1);
                    let failed = match done.result {
                        Ok(response) => (response[..] == [FULL]).then(|| Full.into()),
                        Err(error) => Some(ClientError::Load(error)),
                    };
                    if let Some(error) = failed {
                        of.1.borrow_mut().get_or_insert(error);
                    }
                })?;
                begun += 1;
            }
            self.rpc.poll();
            if let Some(error) = ended.1.take() {
                return Err(error);
            }
            progress(ended.0.get());
        }
        Ok(())
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
