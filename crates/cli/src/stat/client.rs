//! The asking side: a session to each endpoint of a server, and snapshots over them.
//!
//! What a server says is not trusted: a page that does not get on ends the asking, and text
//! loses its control characters before a terminal sees it ([`clean`]).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{CallError, Config, Nexus, Rpc, SessionError, SessionId, SessionState, Status, Uri};

use super::snapshot::{FORMAT, PAGE, Query, STAT, Snapshot};
use courser_bench::program::Failure;
use courser_bench::program::interrupt::Interrupt;

/// How long an endpoint may take to answer; one that is busy with long handlers needs a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Most endpoints that a server is believed to have: what `courser serve --threads` takes.
const MAX_ENDPOINTS: u16 = 1024;

/// Most sessions that an endpoint is believed to have: the default of `Config::max_sessions`.
const MAX_SESSIONS: usize = 65_536;

/// Longest answer that is taken, bytes: a page of sessions has about 100 KiB.
const MAX_ANSWER: u32 = 1 << 20;

/// Sessions to the endpoints of one server.
pub(super) struct Client {
    rpc: Rpc,
    uri: Uri,
    sessions: Vec<SessionId>,
}

impl Client {
    /// Connects to the endpoint that the address names, or to the first one.
    ///
    /// # Errors
    /// The address cannot be read, or the server not be reached.
    pub(super) fn connect(text: &str) -> Result<Self, Failure> {
        let uri: Uri = text.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
        let config = Config { max_msg_size: MAX_ANSWER, ..Config::default() };
        let mut rpc = Nexus::bind_with(&bind_for(&uri), config)?.endpoint()?;
        let first = Uri { endpoint: uri.endpoint.or(Some(0)), ..uri.clone() };
        let session = connect(&mut rpc, &first)?;
        Ok(Self { rpc, uri, sessions: vec![session] })
    }

    pub(super) fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Sleeps, but not while a session wants attention; a signal ends it.
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

    /// A snapshot of every endpoint, with its sessions if these are wanted. `None`: a signal came.
    ///
    /// # Errors
    /// The server is gone, or is no `courser serve` of this version.
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

    /// One endpoint's snapshot, all pages of it.
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
        let told = answer.clone();
        let call = self.rpc.call(session, STAT, request, move |cx, done| {
            let snapshot = done.result.map(|text| {
                let read: Option<Snapshot> = serde_json::from_slice(&text).ok();
                read.filter(|snapshot| snapshot.format == FORMAT)
            });
            *told.borrow_mut() = Some(snapshot);
            cx.stop();
        });
        if let Err(rejected) = call {
            return Err(self.gone(session).unwrap_or(failed(rejected.reason.to_string())));
        }
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            match answer.take() {
                Some(Ok(Some(snapshot))) => return Ok(Some(bounded(snapshot))),
                Some(Ok(None)) => return Err(self.foreign("something else than statistics")),
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

    /// Why there is no session any more, if that is so.
    fn gone(&self, session: SessionId) -> Option<Failure> {
        if self.rpc.session_state(session) != SessionState::Gone {
            return None;
        }
        let why = self.rpc.session_error(session).unwrap_or(SessionError::Gone);
        Some(Failure::Runtime(format!("{} is gone: {why}", self.uri)))
    }

    fn explain(&self, session: SessionId, error: CallError) -> Failure {
        match error {
            CallError::Server(Status::UnknownType) => Failure::Usage(format!(
                "{} has no statistics: it is not `courser serve`, or one too old to tell them",
                self.uri
            )),
            CallError::Server(Status::Rejected) => {
                self.foreign("that it does not know what is asked")
            }
            error => self
                .gone(session)
                .unwrap_or_else(|| Failure::Runtime(format!("{}: {error}", self.uri))),
        }
    }

    fn foreign(&self, what: &str) -> Failure {
        Failure::Usage(format!(
            "{} answers {what}: it is of another version than this program ({})",
            self.uri,
            courser_bench::program::VERSION
        ))
    }
}

fn connect(rpc: &mut Rpc, uri: &Uri) -> Result<SessionId, Failure> {
    let session = rpc.connect(&uri.to_string())?;
    rpc.wait_connected(session)?;
    Ok(session)
}

/// A local address from which the server can be reached: any, of the server's family; over shared
/// memory the server's host, since both sides are on it.
pub(crate) fn bind_for(server: &Uri) -> String {
    if server.scheme == "shm" {
        return Uri { port: 0, endpoint: None, ..server.clone() }.to_string();
    }
    let any = match server.host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "0.0.0.0",
        // A name may have addresses of both families; the IPv6 wildcard takes both.
        _ => "[::]",
    };
    format!("{}://{any}:0", server.scheme)
}

/// A page that costs no more to keep than one of an honest server.
fn bounded(mut snapshot: Snapshot) -> Snapshot {
    snapshot.sessions.truncate(PAGE);
    for row in &mut snapshot.sessions {
        row.role = clean(&row.role);
        row.state = clean(&row.state);
        row.recovery = clean(&row.recovery);
        row.peer = row.peer.as_deref().map(clean);
    }
    snapshot
}

/// Text from elsewhere, fit for a terminal: bounded, and without control characters.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::snapshot::SessionRow;

    #[test]
    fn this_side_is_of_the_servers_family() {
        for (server, bind) in [
            ("udp://10.0.0.1:5", "udp://0.0.0.0:0"),
            ("udp://[::1]:5", "udp://[::]:0"),
            ("udp://db1:5/2", "udp://[::]:0"),
            ("shm://127.0.0.1:5/2", "shm://127.0.0.1:0"),
            ("shm://[::1]:5", "shm://[::1]:0"),
        ] {
            let server: Uri = server.parse().expect("an address");
            assert_eq!(bind_for(&server), bind);
        }
    }

    #[test]
    fn a_page_is_kept_within_bounds() {
        let row = SessionRow {
            role: "r".repeat(1000),
            state: "s".repeat(1000),
            recovery: "y".repeat(1000),
            peer: Some("p".repeat(1000)),
            ..SessionRow::default()
        };
        let page = bounded(Snapshot { sessions: vec![row; PAGE + 1], ..Snapshot::default() });
        assert_eq!(page.sessions.len(), PAGE);
        let row = &page.sessions[0];
        let peer = row.peer.as_ref().map_or(0, String::len);
        let lengths = [row.role.len(), row.state.len(), row.recovery.len(), peer];
        assert_eq!(lengths, [80; 4]);
    }

    #[test]
    fn a_server_cannot_paint_the_terminal() {
        assert_eq!(clean("ok \x1b[31mred\r\n\u{9b}1"), "ok [31mred1");
        assert_eq!(clean(&"x".repeat(1000)).len(), 80);
    }
}
