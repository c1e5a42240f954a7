//! The server side of `courser stat`, for endpoints of `courser serve`.
//!
//! A handler cannot read the transport's counters, because the transport's receive memory is borrowed
//! during the call. The handler therefore only queues the request, and the event loop answers it
//! between two passes. An endpoint without such requests checks one empty list per iteration.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use courser::parts::transport::Addr;
use courser::{
    MemoryUse, Nexus, ReplyHandle, Role, Rpc, RunError, SessionId, SessionState, Transport,
};
use courser_kit::counters::{nonzero, object};
use serde_json::Value;

use super::snapshot::{FORMAT, PAGE, Process, Query, STAT, SessionRow, Snapshot};

/// Most queued requests; more than one pass can receive.
const WAITING: usize = 1024;

/// An endpoint's statistics service.
pub(crate) struct Service {
    asked: Rc<RefCell<Vec<(ReplyHandle, Query)>>>,
    /// The address that the server is bound to.
    own: Option<IpAddr>,
}

impl Service {
    /// Registers the handler. `own`: the address that the server is bound to, or the loopback.
    pub(crate) fn register<T: Transport>(rpc: &mut Rpc<T>, own: Option<IpAddr>) -> Self {
        let asked = Rc::new(RefCell::new(Vec::new()));
        let list = asked.clone();
        rpc.on(STAT, move |cx, request| {
            let query = serde_json::from_slice(&request).ok();
            match query.filter(|query: &Query| query.format == FORMAT) {
                Some(query) if list.borrow().len() < WAITING => {
                    let Some(handle) = cx.defer() else { return };
                    list.borrow_mut().push((handle, query));
                }
                // Another format, an invalid query, or too many requests.
                _ => cx.reject(),
            }
        });
        Self { asked, own }
    }

    /// Runs the event loop until it is stopped, and answers requests. `process` is called once for each
    /// request.
    ///
    /// # Errors
    /// The system's poll failed.
    pub(crate) fn run<T: Transport>(
        &self,
        rpc: &mut Rpc<T>,
        process: impl Fn() -> Process,
    ) -> Result<(), RunError> {
        loop {
            rpc.run_until(|| !self.asked.borrow().is_empty())?;
            let asked = self.asked.take();
            if asked.is_empty() {
                return Ok(());
            }
            for (handle, query) in asked {
                let asker = (handle.session(), self.own);
                let snapshot = Snapshot::take(rpc, process(), &query, asker);
                // The client gets failures, and a dropped handle, as the error of its call.
                if let Ok(text) = serde_json::to_vec(&snapshot) {
                    let _ = rpc.reply_to(handle, text);
                }
            }
        }
    }
}

/// The part of a snapshot that is common to all endpoints of a process.
pub(crate) fn process(nexus: &Nexus, endpoints: u16) -> Process {
    let version = courser_kit::VERSION.to_owned();
    let (control, workers) = (nonzero(&nexus.control_stats()), nonzero(&nexus.worker_stats()));
    Process { version, endpoints, control, workers }
}

impl Snapshot {
    /// Reads the statistics of an endpoint between two passes of its event loop.
    fn take<T: Transport>(
        rpc: &mut Rpc<T>,
        process: Process,
        query: &Query,
        (asked_by, own): (SessionId, Option<IpAddr>),
    ) -> Self {
        let wanted = query.sessions.min(PAGE);
        let ids: Vec<_> = rpc.sessions_from(query.first_session).take(wanted + 1).collect();
        let (page, next) = ids.split_at(wanted.min(ids.len()));
        let mut counters = object(rpc.stats());
        // Zeros are left out of it.
        let drops = counters.remove("drops").and_then(|drops| drops.as_object().cloned());
        counters.extend(object(&rpc.transport_stats()));
        // Iterates over all sessions; a query for sessions does that anyway.
        let of_sessions = if wanted > 0 && query.first_session == 0 {
            rpc.session_memory()
        } else {
            MemoryUse::default()
        };
        // Addresses of clients are nothing for other machines, except their own.
        let asker = rpc.session_stats(asked_by).and_then(|session| session.peer);
        let shows_all = asker.is_some_and(|peer| is_local(peer, own));
        let shows = |id: SessionId| shows_all || id == asked_by;
        let mut memory = object(&rpc.memory());
        // The rest of the memory is in the arena.
        let sessions_bytes =
            of_sessions.total_bytes() - of_sessions.prealloc_bytes - of_sessions.held_bytes;
        memory.insert("sessions_bytes".to_owned(), sessions_bytes.into());
        Self {
            format: FORMAT,
            process,
            endpoint: rpc.index(),
            port: rpc.port(),
            control: rpc.control().name().to_owned(),
            counters,
            drops: drops.unwrap_or_default(),
            handlers: nonzero(&rpc.handler_stats()),
            credits_granted: rpc.credits_granted(),
            outstanding_calls: rpc.outstanding_calls(),
            memory,
            session_count: rpc.sessions(),
            sessions: page.iter().filter_map(|&id| session(rpc, id, shows(id))).collect(),
            next_session: next.first().map(|id| id.index()),
            asked_by: asked_by.index(),
            now_ns: rpc.context().now_ns(),
        }
    }
}

/// Returns whether a peer is a program of this machine: one with a loopback address, with the server's
/// own address, from which the system answers it, or without the address of a socket.
fn is_local(peer: Addr, own: Option<IpAddr>) -> bool {
    peer.to_socket().is_none_or(|socket| {
        let host = socket.ip().to_canonical();
        host.is_loopback() || own.is_some_and(|own| own.to_canonical() == host)
    })
}

/// A session, with the address of its peer only for a program that may see it.
fn session<T: Transport>(rpc: &Rpc<T>, id: SessionId, shows_peer: bool) -> Option<SessionRow> {
    let s = rpc.session_stats(id)?;
    let mut numbers = object(&s);
    let role = match s.role {
        Role::Client => "client",
        // Only the client knows the available credits.
        Role::Server => {
            numbers.insert("credits".to_owned(), Value::Null);
            "server"
        }
    };
    let state = match rpc.session_state(id) {
        SessionState::Connecting => "connecting",
        SessionState::Connected => "connected",
        _ => "gone",
    };
    Some(SessionRow {
        session: id.index(),
        role: role.to_owned(),
        state: state.to_owned(),
        peer: s.peer.filter(|_| shows_peer).map(|peer| peer.to_string()),
        recovery: s.recovery.name().to_owned(),
        numbers,
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn programs_of_the_machine_have_its_loopback_or_its_own_address() {
        let is_local = |peer: &str, own: Option<&str>| {
            let socket: SocketAddr = peer.parse().unwrap();
            is_local(Addr::from_socket(socket), own.map(|own| own.parse().unwrap()))
        };
        assert!(is_local("127.0.0.1:9", None) && is_local("[::1]:9", Some("10.0.0.5")));
        assert!(is_local("10.0.0.5:9", Some("10.0.0.5")));
        assert!(is_local("10.0.0.5:9", Some("::ffff:10.0.0.5")));
        assert!(is_local("[fd00::5]:9", Some("fd00::5")));
        assert!(!is_local("10.0.0.6:9", Some("10.0.0.5")) && !is_local("10.0.0.5:9", None));
        assert!(!is_local("10.0.0.5:9", Some("127.0.0.1")));
    }
}
