//! The client library: finds the leader, retries, and applies each write once.
//!
//! It runs on an endpoint's own thread ([`Local`]), in production and in the simulator; calls may be
//! concurrent. Programs with other runtimes implement [`Net`] for theirs.

mod session;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use courser::service::{Channel, NoError, Postcard, RpcError, Streaming};
use courser::{Executed, Local, Session};
use futures::future::{Either, select};
use serde_bytes::ByteBuf;

use crate::api::{KvClient, KvError, Page};
use crate::command::{Ticket, Unwritten, Written};
use crate::core::{MemberChange, MemberError, Status};
use crate::store::{Change, Kind};
use session::{Numbers, Open};

/// Connections and time, as the client needs them.
pub trait Net: Clone + 'static {
    /// A connection.
    type Channel: Channel;

    /// Connects with a node. `None`: that failed, or took longer than `time`.
    fn connect(
        &self,
        uri: &str,
        time: Duration,
    ) -> impl Future<Output = Option<KvClient<Self::Channel>>>;

    /// Waits.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// The time, ns.
    fn now_ns(&self) -> u64;
}

impl Net for Local {
    type Channel = Session;

    async fn connect(&self, uri: &str, time: Duration) -> Option<KvClient<Session>> {
        let attempt = async { KvClient::new(Local::connect(self, uri).await.ok()?).await.ok() };
        self.timeout(time, attempt).await.ok().flatten()
    }

    async fn sleep(&self, time: Duration) {
        Local::sleep(self, time).await;
    }

    fn now_ns(&self) -> u64 {
        Local::now_ns(self)
    }
}

/// Why a call has no result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The time was up.
    #[error(
        "no leader answered in time{}; see that a majority of the nodes runs, with `raft-kv status`",
        if *executed == Executed::Never { "" } else { ", and the write may be applied" }
    )]
    TimedOut {
        /// States whether a write was applied.
        executed: Executed,
    },
    /// The session expired while a write was tried again, so its result is lost.
    #[error("the session expired during a retry, and the write may be applied; read the key")]
    Unknown,
    /// The node refused the call. Nothing was done.
    #[error(transparent)]
    Refused(KvError),
}

/// A connection that is in use, with its number.
struct Connection<C: Channel> {
    number: u64,
    kv: KvClient<C>,
    uri: String,
}

/// A client of a cluster. See the module.
pub struct Client<N: Net> {
    net: N,
    members: Vec<String>,
    /// Time of a call with all its attempts, and of one attempt.
    times: (Duration, Duration),
    connection: RefCell<Option<Connection<N::Channel>>>,
    last: Cell<u64>,
    connecting: futures::lock::Mutex<()>,
    /// Address of the leader, as a node named it.
    leader: RefCell<Option<String>>,
    session: RefCell<Option<Numbers>>,
    opening: futures::lock::Mutex<()>,
}

impl<N: Net> std::fmt::Debug for Client<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("members", &self.members).finish_non_exhaustive()
    }
}

/// Most doublings of an attempt's time.
const LATE: u32 = 5;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(10);

impl<N: Net> Client<N> {
    /// A client of the cluster with these members, of which one that can be reached is enough. Calls end
    /// after `patience` at the latest, also those that wait for others to connect or to open the session.
    pub fn new(net: N, members: Vec<String>, patience: Duration) -> Self {
        let attempt = patience.min(Duration::from_secs(1));
        Client {
            net,
            members,
            times: (patience, attempt),
            connection: RefCell::default(),
            last: Cell::new(0),
            connecting: futures::lock::Mutex::default(),
            leader: RefCell::default(),
            session: RefCell::default(),
            opening: futures::lock::Mutex::default(),
        }
    }

    /// Sets the time of one attempt, and of connecting with a node. Default 1 s. An attempt after one that
    /// took all of its time has twice as much, up to 32 times, within the time of the call: a leader that is
    /// slow is not sent everything again and again.
    #[must_use]
    pub fn attempt(mut self, time: Duration) -> Self {
        self.times.1 = time;
        self
    }

    /// Address of the node that is called.
    pub fn connected(&self) -> Option<String> {
        self.connection.borrow().as_ref().map(|connection| connection.uri.clone())
    }

    fn present(&self) -> Option<(u64, KvClient<N::Channel>)> {
        let connection = self.connection.borrow();
        connection.as_ref().map(|connection| (connection.number, connection.kv.clone()))
    }

    /// The time at which a call that begins now ends, ns.
    fn end_ns(&self) -> u64 {
        self.net.now_ns().saturating_add(self.times.0.as_nanos() as u64)
    }

    fn left(&self, end_ns: u64) -> Duration {
        Duration::from_nanos(end_ns.saturating_sub(self.net.now_ns()))
    }

    /// The result of a future, unless it still waits at this time.
    async fn within<T>(&self, end_ns: u64, future: impl Future<Output = T>) -> Option<T> {
        match select(pin!(future), pin!(self.net.sleep(self.left(end_ns)))).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    async fn pause(&self, end_ns: u64) {
        self.net.sleep(PAUSE.min(self.left(end_ns))).await;
    }

    /// A connection to the leader, or to a node that names it. `None`: this attempt failed.
    async fn connection(&self, end_ns: u64) -> Option<(u64, KvClient<N::Channel>)> {
        if let Some(present) = self.present() {
            return Some(present);
        }
        let _one = self.connecting.lock().await;
        if let Some(present) = self.present() {
            return Some(present);
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        let named = self.leader.borrow_mut().take();
        let next = self.members.get(number as usize % self.members.len().max(1)).cloned();
        let uri = named.or(next)?;
        let kv = self.net.connect(&uri, self.times.1.min(self.left(end_ns))).await?;
        *self.connection.borrow_mut() = Some(Connection { number, kv: kv.clone(), uri });
        Some((number, kv))
    }

    /// Gives up a connection, for the named leader or for any other node.
    fn give_up(&self, number: u64, leader: Option<String>) {
        let mut connection = self.connection.borrow_mut();
        if connection.as_ref().is_some_and(|present| present.number == number) {
            *connection = None;
            *self.leader.borrow_mut() = leader;
        }
    }

    /// The time of an attempt, after some that took all of theirs.
    fn attempt_time(&self, late: u32, end_ns: u64) -> Duration {
        self.times.1.saturating_mul(1 << late.min(LATE)).min(self.left(end_ns))
    }

    /// Calls until there is a result.
    async fn run<T>(
        &self,
        call: impl AsyncFn(&KvClient<N::Channel>, Duration) -> Result<T, RpcError<KvError>>,
    ) -> Result<T, ClientError> {
        self.run_until(self.end_ns(), call).await
    }

    /// Calls until there is a result, or until a time. The call gets the time of its attempt.
    async fn run_until<T>(
        &self,
        end_ns: u64,
        call: impl AsyncFn(&KvClient<N::Channel>, Duration) -> Result<T, RpcError<KvError>>,
    ) -> Result<T, ClientError> {
        let (mut tries, mut late, mut is_pending) = (0, 0, false);
        loop {
            if self.net.now_ns() >= end_ns {
                if is_pending {
                    return Err(ClientError::Refused(KvError::Members(MemberError::Pending)));
                }
                let executed = if tries == 0 { Executed::Never } else { Executed::Maybe };
                return Err(ClientError::TimedOut { executed });
            }
            let connected = self.within(end_ns, self.connection(end_ns)).await;
            let Some((number, kv)) = connected.flatten() else {
                self.pause(end_ns).await;
                continue;
            };
            let (began_ns, time) = (self.net.now_ns(), self.attempt_time(late, end_ns));
            match call(&kv, time).await {
                Ok(result) => return Ok(result),
                Err(RpcError::Service(KvError::NotLeader { leader })) => {
                    // The entry of this attempt may be in the log.
                    tries += 1;
                    let is_named = leader.is_some();
                    self.give_up(number, leader);
                    if !is_named {
                        self.pause(end_ns).await;
                    }
                }
                Err(RpcError::Service(KvError::Busy)) => self.pause(end_ns).await,
                Err(RpcError::Service(KvError::Members(MemberError::Pending))) => {
                    // It may be an attempt of this call whose answer was lost.
                    is_pending = true;
                    self.pause(end_ns).await;
                }
                Err(RpcError::Service(KvError::Unwritten(Unwritten::Expired))) if tries > 0 => {
                    self.session.borrow_mut().take();
                    return Err(ClientError::Unknown);
                }
                Err(RpcError::Service(KvError::Stopped(_))) => {
                    tries += 1;
                    self.give_up(number, None);
                    self.pause(end_ns).await;
                }
                Err(RpcError::Service(refused)) => return Err(ClientError::Refused(refused)),
                Err(error) => {
                    tries += u32::from(error.executed() != Executed::Never);
                    late += u32::from(self.net.now_ns() - began_ns >= time.as_nanos() as u64);
                    self.give_up(number, None);
                    self.pause(end_ns).await;
                }
            }
        }
    }

    /// The session for writes, which is opened at first.
    async fn ticket(&self, end_ns: u64) -> Result<Open<'_>, ClientError> {
        const TIMED_OUT: ClientError = ClientError::TimedOut { executed: Executed::Never };
        loop {
            let free = self.session.borrow_mut().as_mut().map(Numbers::take);
            match free {
                Some(Some((session, seq))) => return Ok(Open::new(&self.session, session, seq)),
                // As many writes are in progress as the session may have.
                Some(None) if self.net.now_ns() >= end_ns => return Err(TIMED_OUT),
                Some(None) => self.pause(end_ns).await,
                None => {
                    let _one = self.within(end_ns, self.opening.lock()).await.ok_or(TIMED_OUT)?;
                    if self.session.borrow().is_none() {
                        let open =
                            async |kv: &KvClient<N::Channel>, time| kv.open().deadline(time).await;
                        let open = self.run_until(end_ns, open).await.map_err(unwritten)?;
                        *self.session.borrow_mut() = Some(Numbers::new(open));
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        call: impl AsyncFn(
            &KvClient<N::Channel>,
            Ticket,
            Duration,
        ) -> Result<Written, RpcError<KvError>>,
    ) -> Result<Written, ClientError> {
        let end_ns = self.end_ns();
        loop {
            let open = self.ticket(end_ns).await?;
            let attempt =
                async |kv: &KvClient<N::Channel>, time| call(kv, open.ticket(), time).await;
            let result = self.run_until(end_ns, attempt).await;
            match result {
                // The session expired before the write was sent: it was never applied.
                Err(ClientError::Refused(KvError::Unwritten(Unwritten::Expired))) => open.expired(),
                result => return result,
            }
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Written, ClientError> {
        self.write(async |kv, ticket, time| {
            kv.put(ticket, key.to_vec(), value.to_vec()).deadline(time).await
        })
        .await
    }

    /// Removes a key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete(&self, key: &[u8]) -> Result<Written, ClientError> {
        self.write(async |kv, ticket, time| kv.delete(ticket, key.to_vec()).deadline(time).await)
            .await
    }

    /// Replaces a value if the present one is the expected one; `None` is an absent key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cas(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<Written, ClientError> {
        let bytes = |value: Option<&[u8]>| value.map(|value| ByteBuf::from(value.to_vec()));
        self.write(async |kv, ticket, time| {
            kv.cas(ticket, key.to_vec(), bytes(expected), bytes(value)).deadline(time).await
        })
        .await
    }

    /// Reads a key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        let value = self.run(async |kv, time| kv.get(key.to_vec()).deadline(time).await).await?;
        Ok(value.map(ByteBuf::into_vec))
    }

    /// Reads a page of entries from a key on, up to and without `end`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, ClientError> {
        let end = end.map(|end| ByteBuf::from(end.to_vec()));
        self.run(async |kv, time| kv.scan(from.to_vec(), end.clone(), limit).deadline(time).await)
            .await
    }

    /// Changes of keys with a prefix, after an index of the log, or from the present on.
    pub fn watch(&self, prefix: &[u8], after: Option<u64>) -> Watch<'_, N> {
        Watch { client: self, prefix: prefix.to_vec(), after, stream: None }
    }

    /// The state of the node that is called, usually the leader.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.run(async |kv, time| kv.status().deadline(time).await.map_err(widen)).await
    }

    /// Changes the members by one, after a change that is in progress. Returns false if they are so
    /// already; that may be by an attempt whose answer was lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn change(&self, change: &MemberChange) -> Result<bool, ClientError> {
        self.run(async |kv, time| kv.change(change.clone()).deadline(time).await).await
    }

    /// Ends the session, if there is one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn close(&self) -> Result<(), ClientError> {
        let session = self.session.borrow_mut().take();
        let Some(session) = session.map(|numbers| numbers.session()) else { return Ok(()) };
        self.run(async |kv, time| kv.close(session).deadline(time).await).await
    }
}

/// The changes of a watch. When its node is lost it goes on at another one, after the last change that it
/// had, so that it has each change once. Changes that no node keeps any more are reported as
/// [`Kind::Missed`].
pub struct Watch<'a, N: Net> {
    client: &'a Client<N>,
    prefix: Vec<u8>,
    /// All changes up to this index were returned.
    after: Option<u64>,
    stream: Option<Streaming<N::Channel, Postcard, Change, KvError>>,
}

impl<N: Net> std::fmt::Debug for Watch<'_, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("after", &self.after).finish_non_exhaustive()
    }
}

impl<N: Net> Watch<'_, N> {
    /// The index after which the watch goes on, when it is known.
    pub fn after(&self) -> Option<u64> {
        self.after
    }

    /// The next change.
    ///
    /// # Errors
    /// No node was reached in the time of a call. See [`ClientError`].
    pub async fn next(&mut self) -> Result<Change, ClientError> {
        let mut refused_ns = None;
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => none.insert(self.client.open_watch(&self.prefix, self.after).await?),
            };
            match stream.next().await {
                Some(Ok(change)) => {
                    self.after = Some(change.index);
                    if change.kind != Kind::Reached {
                        return Ok(change);
                    }
                }
                lost => {
                    let now_ns = self.client.net.now_ns();
                    let since_ns = now_ns - *refused_ns.get_or_insert(now_ns);
                    if let Some(Err(RpcError::Service(refused))) = lost
                        && since_ns > self.client.times.0.as_nanos() as u64
                    {
                        return Err(ClientError::Refused(refused));
                    }
                    self.stream = None;
                    if let Some((number, _)) = self.client.present() {
                        self.client.give_up(number, None);
                    }
                    self.client.net.sleep(PAUSE).await;
                }
            }
        }
    }
}

impl<N: Net> Client<N> {
    async fn open_watch(
        &self,
        prefix: &[u8],
        after: Option<u64>,
    ) -> Result<Streaming<N::Channel, Postcard, Change, KvError>, ClientError> {
        let end_ns = self.end_ns();
        let open = async |kv: &KvClient<N::Channel>, _| kv.watch(prefix.to_vec(), after).await;
        // The begin of a stream has no time of its own.
        let begin = self.within(end_ns, self.run_until(end_ns, open)).await;
        begin.unwrap_or(Err(ClientError::TimedOut { executed: Executed::Never }))
    }
}

/// The error of a write for which no session was opened, so that it was not sent.
fn unwritten(error: ClientError) -> ClientError {
    match error {
        ClientError::TimedOut { .. } => ClientError::TimedOut { executed: Executed::Never },
        error => error,
    }
}

/// The error of a method without errors of its own.
fn widen(error: RpcError<NoError>) -> RpcError<KvError> {
    match error {
        RpcError::Service(never) => match never {},
        RpcError::Call(error) => RpcError::Call(error),
        RpcError::Encode(error) => RpcError::Encode(error),
        RpcError::Decode(error) => RpcError::Decode(error),
        RpcError::Denied(error) => RpcError::Denied(error),
        RpcError::Stream(error) => RpcError::Stream(error),
        RpcError::MidStream(error) => RpcError::MidStream(error),
        _ => RpcError::Denied("an error of another version".into()),
    }
}
