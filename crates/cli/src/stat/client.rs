//! The client side of statistics: a session to each endpoint of a server, and requests for snapshots.
//!
//! Responses are not trusted: a page without progress ends the request, and control characters are
//! removed from text before it is printed ([`clean`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{CallError, Config, Nexus, Rpc, SessionError, SessionId, SessionState, Status, Uri};

use super::snapshot::{FORMAT, PAGE, Query, STAT, Snapshot};
use courser_kit::Failure;
use courser_kit::interrupt::Interrupt;

/// Time limit for a response; an endpoint may be busy with long handlers.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Most endpoints of a server that are accepted: the limit of `courser serve --threads`.
const MAX_ENDPOINTS: u16 = 1024;

/// Most sessions of an endpoint that are accepted: the default of `Config::max_sessions`.
const MAX_SESSIONS: usize = 65_536;

/// Longest accepted response, bytes; a page of sessions has about 100 KiB.
const MAX_ANSWER: u32 = 1 << 20;

/// Sessions to the endpoints of one server.
pub(super) struct Client {
    rpc: Rpc,
    uri: Uri,
    sessions: Vec<SessionId>,
    /// The server does not know the request for statistics.
    unknown: Cell<bool>,
}

impl Client {
    /// Connects to the endpoint that the address names, or to the first one. `bind` is the local
    /// address.
    ///
    /// # Errors
    /// An address is invalid, or the server cannot be reached.
    pub(super) fn connect(text: &str, bind: Option<&str>) -> Result<Self, Failure> {
        let uri: Uri = text.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
        let config = Config { max_msg_size: MAX_ANSWER, ..Config::default() };
        let bind = bind.map_or_else(|| uri.bind_for_client().to_string(), str::to_owned);
        let mut rpc = Nexus::bind_with(&bind, config)?.endpoint()?;
        let first = Uri { endpoint: uri.endpoint.or(Some(0)), ..uri.clone() };
        let session = connect(&mut rpc, &first)?;
        Ok(Self { rpc, uri, sessions: vec![session], unknown: Cell::new(false) })
    }

    /// Returns whether the server does not know the request of [`Client::snapshots`].
    pub(super) fn knows_no_statistics(&self) -> bool {
        self.unknown.get()
    }

    pub(super) fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Runs the event loop for the given time; a signal ends it.
    ///
    /// # Errors
    /// The event loop failed.
    pub(super) fn rest(&mut self, until: Instant, interrupt: &Interrupt) -> Result<(), Failure> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || interrupt.is_set() {
                return Ok(());
            }
            self.rpc.run_for(left).map_err(|error| Failure::Runtime(error.to_string()))?;
        }
    }

    /// Requests a snapshot of every endpoint, with sessions if requested. `None` after a signal.
    ///
    /// # Errors
    /// The session has failed, or the server is no `courser serve` of this version.
    pub(super) fn snapshots(
        &mut self,
        sessions: bool,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<Snapshot>>, Failure> {
        let mut all = Vec::new();
        let mut at = 0;
        while let Some(&session) = self.sessions.get(at) {
            let Some(snapshot) = self.snapshot(session, sessions, interrupt)? else {
                return Ok(None);
            };
            if at == 0 && self.sessions.len() == 1 && self.uri.endpoint.is_none() {
                for n in 1..snapshot.process.endpoints.min(MAX_ENDPOINTS) {
                    let uri = Uri { endpoint: Some(n), ..self.uri.clone() };
                    let session = connect(&mut self.rpc, &uri)?;
                    self.sessions.push(session);
                }
            }
            all.push(snapshot);
            at += 1;
        }
        Ok(Some(all))
    }

    /// Requests all pages of one endpoint's snapshot.
    fn snapshot(
        &mut self,
        session: SessionId,
        sessions: bool,
        interrupt: &Interrupt,
    ) -> Result<Option<Snapshot>, Failure> {
        let wanted = if sessions { PAGE } else { 0 };
        let Some(mut first) = self.page(session, 0, wanted, interrupt)? else { return Ok(None) };
        let mut from = 0;
        while let Some(next) = first.next_session.filter(|_| sessions) {
            if next <= from || first.sessions.len() >= MAX_SESSIONS {
                break;
            }
            from = next;
            let Some(page) = self.page(session, from, wanted, interrupt)? else { return Ok(None) };
            if page.sessions.is_empty() {
                break;
            }
            first.sessions.extend(page.sessions);
            first.next_session = page.next_session;
        }
        Ok(Some(first))
    }

    fn page(
        &mut self,
        session: SessionId,
        first_session: u32,
        sessions: usize,
        interrupt: &Interrupt,
    ) -> Result<Option<Snapshot>, Failure> {
        let query = Query { format: FORMAT, first_session, sessions };
        let query = serde_json::to_vec(&query).map_err(std::io::Error::from)?;
        let failed = |why: String| Failure::Runtime(format!("{}: {why}", self.uri));
        let mut request = self.rpc.alloc(query.len()).map_err(|e| failed(e.to_string()))?;
        request.copy_from_slice(&query);
        let answer = Rc::new(RefCell::new(None));
        let shared = answer.clone();
        let call = self.rpc.call(session, STAT, request, move |cx, done| {
            let snapshot = done.result.map(|text| {
                let read: Option<Snapshot> = serde_json::from_slice(&text).ok();
                read.filter(|snapshot| snapshot.format == FORMAT)
            });
            *shared.borrow_mut() = Some(snapshot);
            cx.stop();
        });
        if let Err(rejected) = call {
            return Err(self.gone(session).unwrap_or(failed(rejected.reason.to_string())));
        }
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            match answer.take() {
                Some(Ok(Some(snapshot))) => return Ok(Some(bounded(snapshot))),
                Some(Ok(None)) => return Err(self.foreign("with other data than statistics")),
                Some(Err(error)) => return Err(self.explain(session, error)),
                None => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if interrupt.is_set() {
                return Ok(None);
            }
            if left.is_zero() {
                return Err(Failure::Runtime(format!(
                    "{} did not answer within {ANSWER_LIMIT:?}",
                    self.uri
                )));
            }
            let ran = self.rpc.run_for(left);
            ran.map_err(|error| Failure::Runtime(error.to_string()))?;
        }
    }

    /// The error if the session has ended.
    fn gone(&self, session: SessionId) -> Option<Failure> {
        if self.rpc.session_state(session) != SessionState::Gone {
            return None;
        }
        let why = self.rpc.session_error(session).unwrap_or(SessionError::Gone);
        Some(Failure::Runtime(format!("{} is gone: {why}", self.uri)))
    }

    fn explain(&self, session: SessionId, error: CallError) -> Failure {
        match error {
            CallError::Server(Status::UnknownType) => {
                self.unknown.set(true);
                Failure::Usage(format!("{} does not know the request for statistics", self.uri))
            }
            CallError::Server(Status::Rejected) => self.foreign("that the request is unknown"),
            error => self
                .gone(session)
                .unwrap_or_else(|| Failure::Runtime(format!("{}: {error}", self.uri))),
        }
    }

    fn foreign(&self, what: &str) -> Failure {
        Failure::Usage(format!(
            "{} answers {what}: it is of another version than this program ({})",
            self.uri,
            courser_kit::VERSION
        ))
    }
}

fn connect(rpc: &mut Rpc, uri: &Uri) -> Result<SessionId, Failure> {
    let session = rpc.connect(&uri.to_string())?;
    rpc.wait_connected(session)?;
    Ok(session)
}

/// Limits the sessions and texts of a page, so that its memory is bounded.
fn bounded(mut snapshot: Snapshot) -> Snapshot {
    snapshot.control = clean(&snapshot.control);
    snapshot.sessions.truncate(PAGE);
    for row in &mut snapshot.sessions {
        row.role = clean(&row.role);
        row.state = clean(&row.state);
        row.recovery = clean(&row.recovery);
        row.peer = row.peer.as_deref().map(clean);
    }
    snapshot
}

/// Text from a server without control characters and with at most 80 characters.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::snapshot::SessionRow;

    #[test]
    fn the_size_of_a_page_is_limited() {
        let row = SessionRow {
            role: "r".repeat(1000),
            state: "s".repeat(1000),
            recovery: "y".repeat(1000),
            peer: Some("p".repeat(1000)),
            ..SessionRow::default()
        };
        let control = "c".repeat(1000);
        let sessions = vec![row; PAGE + 1];
        let page = bounded(Snapshot { control, sessions, ..Snapshot::default() });
        assert_eq!(page.control.len(), 80);
        assert_eq!(page.sessions.len(), PAGE);
        let row = &page.sessions[0];
        let peer = row.peer.as_ref().map_or(0, String::len);
        let lengths = [row.role.len(), row.state.len(), row.recovery.len(), peer];
        assert_eq!(lengths, [80; 4]);
    }

    #[test]
    fn control_characters_of_a_server_are_removed() {
        assert_eq!(clean("ok \x1b[31mred\r\n\u{9b}1"), "ok [31mred1");
        assert_eq!(clean(&"x".repeat(1000)).len(), 80);
    }
}
