//! The endpoint's side of the control plane: connect, disconnect, and the control thread's messages
//! (ADR 13). The state machines are in `courser-proto`; this module opens the transport's paths for
//! them and sends their control messages.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use courser_buf::{Addr, PathId};
use courser_net::{PathError, Transport, Uri, is_exhausted};
use courser_proto as proto;
use courser_proto::{
    ConnectAccept, ConnectError, ConnectOffer, ConnectOver, ConnectRefuseReason, ConnectRequest,
    ControlMsg, EndpointRef, IdleSession, RemoteSession, SessionId, SessionState,
};

use crate::control::{Command, Dialed, Mail};
use crate::core::PendingCommand;
use crate::error::control::{DialError, LostReason};
use crate::error::{RunError, SessionError};
use crate::run::connections::{Dialing, Link};
use crate::run::endpoint::{Events, Rpc};

/// Limit of repeated requests of a connect, after answers that name a peer which is gone here. One
/// is enough, unless more connects end before their answers in the meantime.
const MAX_REPEATS: u8 = 8;

/// A deadline that is noticed late by this part of its time shows that this thread did not run.
const LATE_PART: u64 = 32;

impl<T: Transport, A: Events> Rpc<T, A> {
    /// Starts to connect to a server and returns at once. Calls on the session are queued until it
    /// is connected, and fail if it fails. [`Rpc::wait_connected`] waits; [`Rpc::session_error`]
    /// returns the error.
    ///
    /// # Errors
    /// The address is invalid, or a limit of this endpoint is reached.
    pub fn connect(&mut self, uri: &str) -> Result<SessionId, SessionError> {
        let session = self.core.connect(uri)?;
        self.run_pending_commands();
        Ok(session)
    }

    /// Runs the commands of the [`Core`] that need the transport or the control thread.
    #[cold]
    pub(crate) fn run_pending_commands(&mut self) {
        for command in std::mem::take(&mut self.core.pending_commands) {
            match command {
                PendingCommand::Dial(uri, dialed) => self.dial(uri, dialed),
                PendingCommand::Close(session, closed) => self.closed(session, closed),
            }
        }
    }

    fn dial(&mut self, uri: Uri, dialed: proto::Dialed) {
        let timeout_ns = u64::try_from(self.connections.timeout.as_nanos()).unwrap_or(u64::MAX);
        let ticket = self.connections.next_ticket;
        self.connections.next_ticket += 1;
        self.connections.dialing.push(Dialing {
            ticket,
            session: dialed.session,
            to: uri.endpoint,
            server: uri.to_string(),
            request: dialed.request,
            deadline_ns: self.core.now_ns().saturating_add(timeout_ns),
            excused: false,
            sent_ns: 0,
            asked: false,
            repeats: 0,
            held_by: None,
            control: None,
        });
        let Uri { host, port, .. } = uri;
        self.control_plane.send(Command::Dial { index: self.index, ticket, host, port });
    }

    /// Runs the event loop until the session is connected.
    ///
    /// # Errors
    /// The error of the session.
    pub fn wait_connected(&mut self, session: SessionId) -> Result<(), SessionError> {
        while self.core.proto.session_state(session) == SessionState::Connecting {
            self.may_block().and_then(|()| self.pass()).map_err(|e| match e {
                RunError::Wait(e) => SessionError::Path(e.to_string()),
                RunError::VirtualTime => SessionError::VirtualTime,
                RunError::Forked => SessionError::Forked,
            })?;
        }
        match self.core.session_error(session) {
            None => Ok(()),
            Some(e) => Err(e),
        }
    }

    /// Closes a client session of this endpoint: its calls end with an error, and the server frees
    /// its side. A session that has ended already is ignored.
    pub fn close(&mut self, session: SessionId) {
        self.core.close(session);
        self.run_pending_commands();
    }

    /// Finishes the close of a session; `closed` is the server's session, and its path if no other
    /// session uses that.
    fn closed(&mut self, session: SessionId, closed: Option<(RemoteSession, Option<PathId>)>) {
        self.connections.dialing.retain(|d| d.session != session);
        self.close_unused_paths();
        if let Some((remote, _)) = closed
            && let Some(link) = self.connections.connected.remove(&session.index())
        {
            self.disconnect(link.control, link.to, remote);
        }
        self.ask_held();
        let Some((_, path)) = closed else { return };
        if let Some(path) = path {
            self.transport.path_close(path);
        }
    }

    /// Notifies the servers of idle sessions, which may then free the sessions' memory (ADR 6).
    pub(crate) fn on_idle(&mut self, idle: IdleSession) {
        let Some(link) = self.connections.connected.get(&idle.session.index()) else { return };
        let (from, to, session) = (self.me(), link.to, idle.remote);
        let msg = ControlMsg::Idle { from, to, session, done: idle.done };
        self.control_plane.send(Command::Send { control: link.control, msg });
    }

    /// Notifies a server that its side of a session has ended.
    fn disconnect(&self, control: u64, to: EndpointRef, session: RemoteSession) {
        let msg = ControlMsg::Disconnect { from: self.me(), to, session };
        self.control_plane.send(Command::Send { control, msg });
    }

    /// Handles sessions whose datapath gets no answers although their control connections work
    /// (ADR 13).
    pub(crate) fn on_silent(&mut self, session: SessionId) {
        let link = self.connections.connected.get(&session.index());
        let datapath = link.map_or_else(String::new, |l| l.datapath.to_string());
        let packet = self.core.proto.session_stats(session).map_or(0, |s| s.data_per_packet);
        self.close(session);
        let scheme = self.core.local.scheme;
        let why = SessionError::DatapathSilent { scheme, datapath, packet };
        self.core.remember_failure(session, why);
    }

    fn me(&self) -> EndpointRef {
        EndpointRef { index: self.index, id: self.core.proto.id() }
    }

    /// Handles messages of other threads: answers of workers, and the control thread's mail. Cold:
    /// workers run for microseconds, and a session has only a few control messages.
    #[cold]
    pub(crate) fn on_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.connections.mail);
        A::take_mail(self, &mut mail);
        // The servers of sessions that are closed already are notified first. After a later request a
        // server would name the peer of such a session, which is gone here, and the loss of another
        // server would take the session for one of its own. Mail itself closes none.
        self.run_pending_commands();
        for item in mail.drain(..) {
            match item {
                Mail::Dialed { ticket, result } => self.on_dialed(ticket, result),
                Mail::Msg { control, remote, local, same_host, msg } => {
                    self.on_control_message(control, (remote, local, same_host), msg);
                }
                Mail::Lost { control, reason } => self.on_lost(control, &reason),
                Mail::Unanswered { control } => self.on_unanswered(control),
                Mail::Scarce { host } => {
                    self.core.proto.evict_clients(host);
                    self.notify_evicted();
                }
            }
        }
        self.connections.mail = mail;
        self.ask_held();
        self.close_unused_paths();
        self.renew_shield();
    }

    /// Reports the last frame from the other side of a control connection on which nothing arrives.
    fn on_unanswered(&mut self, control: u64) {
        if let Some(age_ns) = self.core.proto.last_frame_age_ns(control)
            && let Some(at) = self.core.instant_before(age_ns)
        {
            self.control_plane.send(Command::SignOfLife { control, at });
        }
    }

    fn close_unused_paths(&mut self) {
        while let Some(path) = self.core.proto.poll_unused_path() {
            self.transport.path_close(path);
        }
    }

    /// Handles the result of a connect's dial.
    fn on_dialed(&mut self, ticket: u64, result: Result<Dialed, DialError>) {
        let Some(at) = self.connections.dialing.iter().position(|d| d.ticket == ticket) else {
            return;
        };
        let d = match result {
            Ok(d) => d,
            Err(e) => return self.dial_failed(at, e.into()),
        };
        // The path to the host determines the frame size.
        let (remote, local) = (d.remote, d.local);
        let path = self.transport.path_open(Addr::from_socket(remote), Some(addr(local, 0)));
        let path = match path {
            Ok(path) => path,
            Err(e) => return self.dial_failed(at, SessionError::Path(e.to_string())),
        };
        self.transport.path_close(path.id);
        let integrity = self.connections.integrity(d.same_host);
        let held_by = self.connections.held(d.control, self.connections.dialing[at].to);
        let dialing = &mut self.connections.dialing[at];
        dialing.held_by = held_by;
        dialing.control = Some((d.control, remote, local));
        dialing.request.max_frame = path.max_frame as u32;
        // Packets that stay on the host use no switch buffer.
        let over = ConnectOver { control: d.control, integrity, same_host: d.same_host };
        self.core.proto.connect_over(dialing.session, &mut dialing.request, over);
        if held_by.is_none() {
            self.ask(at);
        }
    }

    /// Sends the request of a connect.
    fn ask(&mut self, at: usize) {
        let (from, sent_ns) = (self.me(), self.core.now_ns());
        let d = &mut self.connections.dialing[at];
        let Some((control, ..)) = d.control else { return };
        (d.sent_ns, d.asked) = (sent_ns, true);
        let msg = ControlMsg::Connect { from, to: d.to, request: d.request.clone() };
        self.control_plane.send(Command::Send { control, msg });
    }

    /// Sends the requests that wait for the answers of a server endpoint to others, once all have
    /// arrived: this endpoint has sent the disconnects of the sessions that they began.
    fn ask_held(&mut self) {
        let released = self.connections.released();
        for at in 0..self.connections.dialing.len() {
            let d = &self.connections.dialing[at];
            if d.held_by().is_some_and(|held| released.contains(&held)) {
                self.ask(at);
            }
        }
    }

    fn dial_failed(&mut self, at: usize, error: SessionError) {
        let d = self.connections.dialing.swap_remove(at);
        // The session may have been closed, and its number reused by another connect.
        if self.core.proto.session_state(d.session) == SessionState::Connecting {
            self.core.proto.refused(d.session.index(), error.end());
        }
        self.core.remember_failure(d.session, error);
    }

    fn on_control_message(
        &mut self,
        control: u64,
        ends: (SocketAddr, SocketAddr, bool),
        msg: ControlMsg,
    ) {
        match msg {
            ControlMsg::Connect { from, request, .. } => {
                let (session, client_cookie) = (request.session, request.cookie);
                let answer = self.accept(control, ends, from.index, &request);
                self.notify_evicted();
                let msg = match answer {
                    Ok(accept) => ControlMsg::Accept { to: from, from: self.me(), accept },
                    Err(reason) => ControlMsg::Refuse { to: from, session, client_cookie, reason },
                };
                self.control_plane.send(Command::Send { control, msg });
            }
            ControlMsg::Accept { from, accept, .. } => self.on_accept(control, from, &accept),
            ControlMsg::Refuse { session, client_cookie, reason, .. } => {
                if let Some(at) = self.dialing(control, session, client_cookie) {
                    self.dial_failed(at, reason.into());
                }
            }
            ControlMsg::Disconnect { from, session, .. } => {
                if let Some(path) = self.core.proto.disconnected(session, from.id, control) {
                    self.transport.path_close(path);
                }
            }
            ControlMsg::Challenge { from, peer, token, .. } => {
                self.core.proto.on_challenge(peer, from, control, token);
            }
            // Handled by the control thread.
            ControlMsg::Ping | ControlMsg::Pong => {}
            ControlMsg::Idle { from, session, done, .. } => {
                self.core.proto.on_idle(session, from.id, control, &done);
            }
            ControlMsg::Evicted { from, session, server_session, .. } => {
                let ended = self.core.proto.evicted(session, server_session, from.id, control);
                let Some((session, path)) = ended else { return };
                self.connections.connected.remove(&session.index());
                self.core.remember_failure(session, SessionError::Evicted);
                if let Some(path) = path {
                    self.transport.path_close(path);
                }
            }
            ControlMsg::EndpointGone { from } => {
                let why = SessionError::EndpointGone;
                self.fail_sessions(&why, |rpc, paths| {
                    rpc.core.proto.endpoint_lost(from.id, control, paths)
                });
            }
        }
    }

    /// Notifies the clients of evicted sessions.
    fn notify_evicted(&mut self) {
        while let Some(e) = self.core.proto.poll_evicted() {
            let (to, session, server_session) = (e.client, e.session, e.own);
            let msg = ControlMsg::Evicted { to, from: self.me(), session, server_session };
            self.control_plane.send(Command::Send { control: e.control, msg });
        }
    }

    fn accept(
        &mut self,
        control: u64,
        (remote, local, same_host): (SocketAddr, SocketAddr, bool),
        client_index: u16,
        request: &ConnectRequest,
    ) -> Result<ConnectAccept, ConnectRefuseReason> {
        let client = Addr { port: request.port, ..addr(remote, 0) };
        self.core.proto.make_room(request, client, control)?;
        let path = if self.core.proto.knows_peer(request, client, control) {
            None
        } else {
            let opened = self.transport.path_open(client, Some(addr(local, 0)));
            Some(opened.map_err(|e| match e {
                PathError::TooMany(limit) => {
                    ConnectRefuseReason::TooManyPaths { limit: limit as u32 }
                }
                PathError::Io(_, e) if is_exhausted(&e) => ConnectRefuseReason::Exhausted,
                _ => ConnectRefuseReason::NoPath,
            })?)
        };
        let offer = ConnectOffer {
            addr: client,
            path: path.map(|p| (p.id, p.max_frame)),
            local_port: self.transport.local_addr().port,
            control,
            client_index,
            random: self.core.platform.random_u64() as u32,
            integrity: self.connections.integrity(same_host),
            credits: match same_host {
                true => u32::MAX,
                false => self.core.proto.credits_remote(),
            },
        };
        let accepted = self.core.proto.accept(request, offer);
        if let (Err(_), Some(path)) = (&accepted, path) {
            self.transport.path_close(path.id);
        }
        accepted
    }

    /// Finds the connect that an answer belongs to. The cookie distinguishes it from an earlier
    /// connect with the same session number.
    fn dialing(&self, control: u64, session: u32, cookie: u32) -> Option<usize> {
        self.connections.dialing.iter().position(|d| {
            d.session.index() == session && d.request.cookie == cookie && d.is_on(control)
        })
    }

    fn on_accept(&mut self, control: u64, from: EndpointRef, accept: &ConnectAccept) {
        let Some(at) = self.dialing(control, accept.client_session, accept.client_cookie) else {
            // Closed or timed out in the meantime: the server must free the session.
            self.disconnect(control, from, accept.session);
            return;
        };
        let d = &mut self.connections.dialing[at];
        let Some((_, remote, local)) = d.control else { return };
        if d.repeats < MAX_REPEATS && self.core.proto.names_gone_peer(accept, &d.request, control) {
            (d.asked, d.repeats, d.held_by) = (false, d.repeats + 1, Some(from.index));
            self.disconnect(control, from, accept.session);
            return;
        }
        let server = Addr { port: accept.port, ..addr(remote, 0) };
        let path = match self.transport.path_open(server, Some(addr(local, 0))) {
            Ok(path) => path,
            Err(e) => {
                self.disconnect(control, from, accept.session);
                return self.dial_failed(at, SessionError::Path(e.to_string()));
            }
        };
        match self.core.proto.established(accept, server, path.id) {
            Ok(e) => {
                let d = self.connections.dialing.swap_remove(at);
                let took_ns = self.core.now_ns().saturating_sub(d.sent_ns);
                self.core.proto.expect_round_trip(d.session, took_ns);
                let link = Link { session: d.session, control, to: from, datapath: server };
                self.connections.connected.insert(d.session.index(), link);
                if let Some(stats) = self.core.proto.session_stats(d.session)
                    && self.connections.credits.is_some_and(|credits| stats.pool < credits)
                {
                    let smallest = self.connections.smallest_pool.unwrap_or(u32::MAX);
                    self.connections.smallest_pool = Some(smallest.min(stats.pool));
                }
                if e.path_unused {
                    self.transport.path_close(path.id);
                }
            }
            Err(e) => {
                self.transport.path_close(path.id);
                self.disconnect(control, from, accept.session);
                // `Closed`: the answer belongs to an earlier connect with that session number.
                if e != ConnectError::Closed {
                    self.dial_failed(at, e.into());
                }
            }
        }
    }

    fn on_lost(&mut self, control: u64, reason: &LostReason) {
        while let Some(at) = self.connections.dialing.iter().position(|d| d.is_on(control)) {
            self.dial_failed(at, reason.clone().into());
        }
        let why = reason.clone().into();
        self.fail_sessions(&why, |rpc, paths| rpc.core.proto.peer_lost(control, paths));
    }

    /// Fails sessions, drops their connections, and stores the reason.
    fn fail_sessions(
        &mut self,
        why: &SessionError,
        fail: impl FnOnce(&mut Self, &mut Vec<PathId>),
    ) {
        let before = self.core.proto.live_sessions();
        let mut paths = Vec::new();
        fail(self, &mut paths);
        // Close the paths even if the session count is unchanged: sessions that wait for handlers
        // need no path (E68).
        for path in paths {
            self.transport.path_close(path);
        }
        // Client sessions end at once, and are stored with their error.
        if self.core.proto.live_sessions() == before {
            return;
        }
        let links = std::mem::take(&mut self.connections.connected);
        for (index, link) in links {
            if self.core.proto.session_state(link.session) == SessionState::Gone {
                self.core.remember_failure(link.session, why.clone());
            } else {
                self.connections.connected.insert(index, link);
            }
        }
    }

    /// Fails connects past their deadline; returns whether there were any.
    pub(crate) fn check_dialing(&mut self) -> bool {
        let mut any = false;
        let now_ns = self.core.now_ns();
        let timeout_ns = u64::try_from(self.connections.timeout.as_nanos()).unwrap_or(u64::MAX);
        while let Some(at) = self.connections.dialing.iter().position(|d| d.deadline_ns <= now_ns) {
            let d = &mut self.connections.dialing[at];
            // A thread that did not run may have the answer before it.
            let is_late = now_ns - d.deadline_ns > timeout_ns / LATE_PART;
            if is_late && !std::mem::replace(&mut d.excused, true) {
                d.deadline_ns = now_ns.saturating_add(timeout_ns / 4);
                continue;
            }
            let after_ms = self.connections.timeout.as_millis() as u64;
            let server = d.server.clone();
            let error = match d.control {
                Some(_) => SessionError::Timeout { server, after_ms },
                None => DialError::Timeout { addr: server, after: self.connections.timeout }.into(),
            };
            self.dial_failed(at, error);
            any = true;
        }
        self.ask_held();
        self.close_unused_paths();
        any
    }
}

/// The address of a host, with the zone of a link-local one, and a port.
fn addr(host: SocketAddr, port: u16) -> Addr {
    Addr { port: port.into(), ..Addr::from_socket(host) }
}
