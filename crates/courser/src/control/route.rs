//! Commands of the endpoints of this nexus, and delivery of received messages to their mailboxes.
//!
//! A message for an unknown endpoint is dropped and counted; an `Accept` is also answered, as its
//! server would otherwise keep a session without a client. An endpoint whose mailbox is full gets
//! no new clients. Any other message for a full mailbox ends the connection, as [`Mail::Lost`] is
//! always delivered.

use courser_proto::{ConnectRefuseReason, ControlMsg, EndpointRef};

use super::conn::Phase;
use super::driver::Driver;
use super::event::Command;
use super::mail::Mail;
use super::mailbox::MAIL_MAX;
use super::network::Network;
use super::tables::Endpoint;
use crate::counters::count;
use crate::error::control::LostReason;

impl<N: Network> Driver<N> {
    /// Executes a command of an endpoint.
    pub(super) fn on_command(&mut self, c: Command) {
        match c {
            Command::Register { index, id, mailbox, accepts } => {
                self.unregister(index);
                self.endpoints.insert(index, Endpoint { id, mailbox, accepts });
            }
            Command::SetAccepts { index, accepts } => {
                if let Some(e) = self.endpoints.get_mut(&index) {
                    e.accepts = accepts;
                }
            }
            Command::Unregister { index } => self.unregister(index),
            Command::Dial { index, ticket, host, port } => self.on_dial(index, ticket, host, port),
            Command::Send { control, msg } => self.on_send(control, msg),
            Command::SignOfLife { control, at } => self.on_sign_of_life(control, at),
            Command::Stop => self.stopping = true,
            #[cfg(test)]
            Command::Inspect(to) => {
                let _ = to.send(self.tables());
            }
        }
    }

    /// Removes an endpoint and notifies every nexus that exchanged messages with it.
    fn unregister(&mut self, index: u16) {
        let Some(gone) = self.endpoints.remove(&index) else { return };
        for d in self.dials.values_mut() {
            d.waiters.retain(|w| w.index != index);
        }
        let now = self.now();
        let mut notified = Vec::new();
        for (&n, conn) in &mut self.conns {
            conn.usage.forget(index, now);
            if conn.used.remove(&index) {
                notified.push(n);
            }
        }
        let msg = ControlMsg::EndpointGone { from: EndpointRef { index, id: gone.id } };
        for n in notified {
            self.note_use(n);
            self.send(n, &msg);
        }
        // Connects that the endpoint has not handled go to another one, or are refused, so that their
        // clients do not wait for the time-out.
        for mail in gone.mailbox.take_rest() {
            if let Mail::Msg { control, msg: msg @ ControlMsg::Connect { .. }, .. } = mail {
                self.route_connect(control, msg);
            }
        }
    }

    /// Sends a message of an endpoint.
    fn on_send(&mut self, n: u64, msg: ControlMsg) {
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&n) else { return };
        if conn.phase != Phase::Open {
            return;
        }
        if let ControlMsg::Connect { from, .. } | ControlMsg::Accept { from, .. } = &msg
            && self.endpoints.contains_key(&from.index)
        {
            conn.used.insert(from.index);
        }
        conn.usage.on_sent(&msg, now);
        self.note_use(n);
        self.send(n, &msg);
        if matches!(msg, ControlMsg::Evicted { .. }) {
            self.close_evicted(n);
        }
    }

    /// Handles a message that arrived over connection `n`.
    pub(super) fn route(&mut self, n: u64, msg: ControlMsg) {
        let now = self.now();
        if let Some(conn) = self.conns.get_mut(&n) {
            conn.usage.on_received(&msg, now);
            self.note_use(n);
        }
        match &msg {
            ControlMsg::Connect { .. } => self.route_connect(n, msg),
            ControlMsg::EndpointGone { .. } => self.route_to_all(n, msg),
            ControlMsg::Accept { to, from, accept } => {
                // The client is gone, so the server must free the session.
                let (from, to, session) = (*to, *from, accept.session);
                let undo = ControlMsg::Disconnect { from, to, session };
                if !self.route_to(n, from, msg) {
                    self.send(n, &undo);
                }
            }
            &ControlMsg::Challenge { to, .. } => {
                let index =
                    self.endpoints.iter().find(|(_, e)| e.id == to).map(|(&index, _)| index);
                self.route_to(n, EndpointRef { index: index.unwrap_or(u16::MAX), id: to }, msg);
            }
            ControlMsg::Ping => self.answer_ping(n),
            // Its reception is all that matters.
            ControlMsg::Pong => {}
            ControlMsg::Refuse { to, .. }
            | ControlMsg::Disconnect { to, .. }
            | ControlMsg::Evicted { to, .. }
            | ControlMsg::Idle { to, .. } => {
                let to = *to;
                self.route_to(n, to, msg);
            }
        }
    }

    /// Answers a `Ping`. One unsent `Pong` answers all pings, so that a flood of them costs no
    /// memory.
    fn answer_ping(&mut self, n: u64) {
        if let Some(conn) = self.conns.get_mut(&n)
            && !std::mem::replace(&mut conn.pong, true)
        {
            self.send(n, &ControlMsg::Pong);
        }
    }

    /// Delivers a connect to the endpoint that it names, or to the next accepting one, round robin.
    fn route_connect(&mut self, n: u64, msg: ControlMsg) {
        let ControlMsg::Connect { from, to, request } = &msg else { return };
        let (from, session, client_cookie) = (*from, request.session, request.cookie);
        let candidates: Vec<u16> = match to {
            Some(index) => vec![*index],
            None => {
                let next = self.next_endpoint;
                let turn = self.endpoints.range(next..).chain(self.endpoints.range(..next));
                turn.map(|(&index, _)| index).collect()
            }
        };
        for index in candidates {
            let accepts = self.endpoints.get(&index).is_some_and(|e| e.accepts);
            if accepts && self.post(n, index, msg.clone()) {
                if to.is_none() {
                    self.next_endpoint = index.wrapping_add(1);
                }
                return;
            }
        }
        count(&self.parts.counters.refused);
        let reason = ConnectRefuseReason::NoEndpoint;
        self.send(n, &ControlMsg::Refuse { to: from, session, client_cookie, reason });
    }

    /// Delivers to one endpoint; false when it does not exist.
    fn route_to(&mut self, n: u64, to: EndpointRef, msg: ControlMsg) -> bool {
        if self.endpoints.get(&to.index).is_none_or(|e| e.id != to.id) {
            count(&self.parts.counters.misdirected);
            return false;
        }
        if !self.post(n, to.index, msg) {
            self.close(n, LostReason::NotRunning { pending: MAIL_MAX });
        }
        true
    }

    /// Delivers to all endpoints that exchanged messages over the connection.
    fn route_to_all(&mut self, n: u64, msg: ControlMsg) {
        let Some(conn) = self.conns.get(&n) else { return };
        let used: Vec<u16> = conn.used.iter().copied().collect();
        for index in used {
            if !self.post(n, index, msg.clone()) {
                return self.close(n, LostReason::NotRunning { pending: MAIL_MAX });
            }
        }
    }

    /// Adds a message to a mailbox. Returns false when it is full, or the connection or endpoint is
    /// gone.
    fn post(&mut self, control: u64, index: u16, msg: ControlMsg) -> bool {
        let Some(conn) = self.conns.get_mut(&control) else { return false };
        let Some(e) = self.endpoints.get(&index) else { return false };
        let (remote, local, same_host) = (conn.remote, conn.local, conn.same_host);
        let posted = e.mailbox.post(Mail::Msg { control, remote, local, same_host, msg });
        if posted {
            conn.used.insert(index);
        }
        posted
    }
}
