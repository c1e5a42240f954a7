//! The ledger of one-way messages: each that was sent, and its delivery, with the checks on them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use courser::SessionId;

use super::bytes::first_wrong_in_request;
use super::oracle::{Oracle, Who};
use crate::Invariant;
use crate::host::hash::Mix;

/// Kinds of messages, which are their types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum MessageKind {
    /// Its handler runs.
    Plain = 1,
    /// A panic of the handler.
    Panics = 2,
    /// A type without a handler.
    Unhandled = 3,
}

/// The ends of messages, for the coverage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum MessageEnd {
    /// Its handler ran.
    Delivered = 0,
    /// The delivered message had several packets, or waited for the connect as if it had.
    Large = 1,
    /// The queue was full.
    Full = 2,
    /// A session that was full reported room.
    Room = 3,
    /// The deadline passed before it was sent.
    Unsent = 4,
    /// Its session ended, or its call did.
    Failed = 5,
    /// It arrived after its deadline, or its handler would have run after it.
    Expired = 6,
    /// The receiver was shutting down, which no process of the swarm does.
    Refused = 7,
    /// The receiver had no handler.
    Unhandled = 8,
}

/// Names of the ends of messages, in the order of their enumeration.
pub const MESSAGE_ENDS: [&str; 9] = [
    "delivered",
    "delivered-large",
    "queue-full",
    "room-reported",
    "unsent",
    "failed",
    "expired",
    "refused",
    "unhandled",
];

/// A message of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) by: Who,
    pub(super) endpoint: usize,
    pub(super) session: SessionId,
    /// The receiving host.
    pub(super) to: Option<u32>,
    pub(super) kind: MessageKind,
    pub(super) len: u32,
    /// It is one packet, and follows others of its session.
    pub(super) in_order: bool,
    /// It has a deadline.
    pub(super) timed: bool,
    /// The deadline in the world's time, if the server has an estimate of the one-way delay: no
    /// handler starts later.
    pub(super) due_ns: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    sent: Sent,
    /// Its client refused it.
    void: bool,
    arrived: u32,
}

type SessionOf = (Who, usize, SessionId);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct MessageLedger {
    entries: Vec<Entry>,
    /// The newest message of each session that was delivered, of those in order.
    newest: HashMap<SessionOf, u64, BuildHasherDefault<Mix>>,
    /// The first message that was delivered after a later one of its session.
    overtaken: Option<String>,
    /// By [`MessageEnd`].
    pub(super) ends: [u64; MESSAGE_ENDS.len()],
}

impl MessageLedger {
    /// Registers a message that is about to be sent; returns its number.
    pub(super) fn send(&mut self, sent: Sent) -> u64 {
        self.entries.push(Entry { sent, void: false, arrived: 0 });
        self.entries.len() as u64 - 1
    }

    /// Its client refused it, because its queue was `full`.
    pub(super) fn refused(&mut self, number: u64, full: bool) {
        if let Some(entry) = self.entries.get_mut(number as usize) {
            entry.void = true;
        }
        if full {
            self.count(MessageEnd::Full);
        }
    }

    pub(super) fn count(&mut self, end: MessageEnd) {
        self.ends[end as usize] += 1;
    }

    /// Deliveries.
    pub(super) fn delivered(&self) -> u64 {
        self.ends[MessageEnd::Delivered as usize]
    }

    /// The first message that was overtaken by a later one of its session.
    pub(super) fn overtaken(&self) -> Option<&str> {
        self.overtaken.as_deref()
    }

    /// Messages without a deadline that were not delivered, of sessions that `live`: their number,
    /// and one of them.
    pub(super) fn missing(&self, live: impl Fn(&SessionOf) -> bool) -> (u64, String) {
        let (mut count, mut first) = (0, String::new());
        for (number, Entry { sent, void, arrived }) in self.entries.iter().enumerate() {
            let Sent { by, endpoint, session, kind, len, timed, .. } = *sent;
            let handled = kind != MessageKind::Unhandled;
            if *void || *arrived > 0 || timed || !handled || !live(&(by, endpoint, session)) {
                continue;
            }
            if count == 0 {
                first = format!("#{number} of n{}/{endpoint}, {len} B", by.host);
            }
            count += 1;
        }
        (count, first)
    }

    /// A message was delivered for the first time; remembers when an earlier one follows a later one.
    fn check_order(&mut self, number: u64, sent: &Sent, now_ns: u64) {
        if !sent.in_order {
            return;
        }
        let session = (sent.by, sent.endpoint, sent.session);
        let newest = self.newest.entry(session).or_insert(number);
        if *newest > number && self.overtaken.is_none() {
            let detail = format!(
                "message #{number} of n{}/{} was delivered at {now_ns} ns, after #{newest}",
                sent.by.host, sent.endpoint
            );
            self.overtaken = Some(detail);
        }
        *newest = number.max(*newest);
    }
}

impl Oracle {
    /// The handler of a kind of messages runs.
    pub(super) fn message_arrived(
        &mut self,
        number: Option<u64>,
        kind: MessageKind,
        by: Who,
        began_ns: u64,
        message: &[u8],
    ) {
        let ledger = &mut self.messages;
        let known = number.and_then(|n| Some((n, ledger.entries.get_mut(n as usize)?)));
        let Some((number, entry)) = known else {
            let host = by.host;
            let detail = format!("n{host} received an unknown message: {number:?}");
            return self.wrong(Invariant::ResponseMatches, detail);
        };
        entry.arrived += 1;
        let (sent, arrived, void) = (entry.sent, entry.arrived, entry.void);
        ledger.count(MessageEnd::Delivered);
        if !sent.in_order {
            ledger.count(MessageEnd::Large);
        }
        if arrived == 1 {
            ledger.check_order(number, &sent, began_ns);
        }
        self.note(number << 8 | 0xfe);
        let wrong = first_wrong_in_request(number, message);
        let len = message.len();
        if let Some(to) = sent.to.filter(|&to| to != by.host) {
            let detail = format!("message #{number} to n{to} was delivered at n{}", by.host);
            self.wrong(Invariant::ResponseMatches, detail);
        }
        if wrong.is_some() || sent.kind != kind || len != sent.len as usize {
            let detail =
                format!("message #{number} arrived changed: {len} bytes, wrong from {wrong:?}");
            self.wrong(Invariant::ResponseMatches, detail);
        }
        if arrived > 1 || void {
            let detail =
                format!("message #{number} was delivered {arrived} times (refused: {void})");
            self.wrong(Invariant::AtMostOnce, detail);
        }
        if let Some(due_ns) = sent.due_ns.filter(|&due_ns| began_ns > due_ns)
            && !self.clocks_drift()
        {
            let late_ns = began_ns - due_ns;
            let detail = format!("message #{number} was delivered {late_ns} ns too late");
            self.wrong(Invariant::Application, detail);
        }
    }
}
