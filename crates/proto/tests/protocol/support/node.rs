//! One endpoint with its transport, its handler and its application.

use std::collections::{BTreeMap, VecDeque};

use courser_buf::{
    Addr, Arena, ArenaConfig, Ecn, Heap, MsgBuf, PathId, RxFrame, Tail, TxBurst, TxFrame,
};
use courser_proto::{
    Body, CallError, Completion, Config, Driver, Endpoint, Framing, RequestId, SessionId, Status,
};

use super::{MAX_FRAME, pattern};

/// A handler's action on a request.
pub enum Action {
    Reply(Vec<u8>),
    ReplyMsg(Vec<u8>),
    /// Replies after this many nanoseconds.
    Defer(u64, Vec<u8>),
    Status(Status),
    /// Calls a node's session with the request's number, and replies with the response.
    Nest(SessionId, u16, usize),
    /// Never replies.
    Forget,
}

pub type Handler = Box<dyn FnMut(u16, &[u8]) -> Action>;

/// A call that has ended.
#[derive(Debug)]
pub struct Done {
    pub id: u64,
    pub session: SessionId,
    pub result: Result<Vec<u8>, CallError>,
    pub request: MsgBuf,
}

pub struct Node {
    pub ep: Endpoint<u64>,
    pub arena: Arena,
    pub handler: Handler,
    /// Executions of each request type.
    pub executed: BTreeMap<u16, u32>,
    pub deferred: Vec<(u64, RequestId, Vec<u8>)>,
    nested: BTreeMap<u64, RequestId>,
    pub requests: Vec<RequestId>,
    pub done: Vec<Done>,
    /// Calls that are made one by one, each when another has ended: session, number, length.
    pub next: VecDeque<(SessionId, u16, usize)>,
    /// Address and length of the buffers of calls in flight.
    pub given: BTreeMap<u64, (usize, usize)>,
    pub tx: TxBurst,
    /// Frames held by the transport, and their bytes, which must not change.
    held: Vec<(TxFrame, Vec<u8>)>,
    /// The transport copies frames that leave alone; number of copied frames.
    pub copies: bool,
    pub lone: u64,
    /// Receives all bytes of a frame beyond this many as its tail.
    pub front: usize,
    /// Requests that arrived in buffers of their own.
    pub copied: u64,
    pub allowed: u64,
    pub server_sent: u64,
    now_ns: u64,
    /// Offset of this node's clock from the world's.
    pub clock_ns: u64,
    /// Deadlines of its calls, in the world's time.
    pub deadlines: BTreeMap<u16, u64>,
    /// For each request the time at which its handler started, in the world's time, and its
    /// deadline.
    pub started: Vec<(u16, u64, Option<u64>)>,
    /// One-way messages: their numbers, when they were delivered, in the world's time, and whether
    /// their bytes are right; and the numbers of those in several packets.
    pub messages: Vec<(u16, u64, bool)>,
    pub large: Vec<u16>,
    pub nic: Nic,
}

/// The NIC of a node. By default it sends at once, and reports no backlog.
#[derive(Default)]
pub struct Nic {
    /// Its rate, bit/s; 0: it sends at once.
    pub rate_bps: u64,
    pub reports: bool,
    /// When it has sent all that it has, ns.
    free_ns: u64,
    /// The most that it had to send, bytes.
    pub peak: u64,
    /// Bytes that it reports beside those.
    pub stuck: u64,
    /// It reports all bytes that it has ever had.
    pub keeps: bool,
    /// It reports what it has sent at multiples of this time, ns; 0: at once.
    pub completes_ns: u64,
    /// A frame counts at least this in such a report, bytes.
    pub frame_bytes: u64,
    /// Times at which sent frames are reported, ns, and their bytes.
    sent: VecDeque<(u64, u64)>,
    all: u64,
    /// Reports that were made.
    pub reported: u64,
}

impl Nic {
    fn backlog(&self, now_ns: u64) -> u64 {
        self.free_ns.saturating_sub(now_ns) * self.rate_bps / 8_000_000_000
    }

    /// The backlog that it reports.
    fn report(&mut self, now_ns: u64) -> u64 {
        self.reported += 1;
        self.stuck + if self.keeps { self.all } else { self.held(now_ns) }
    }

    /// Bytes of frames that are not reported as sent.
    fn held(&mut self, now_ns: u64) -> u64 {
        if self.completes_ns == 0 {
            return self.backlog(now_ns);
        }
        self.sent.retain(|(at_ns, _)| *at_ns > now_ns);
        self.sent.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Takes a frame; returns the time until it has sent it, ns.
    pub fn send(&mut self, now_ns: u64, bytes: usize) -> u64 {
        if self.rate_bps == 0 {
            return 0;
        }
        self.all += bytes as u64;
        self.free_ns = self.free_ns.max(now_ns) + bytes as u64 * 8_000_000_000 / self.rate_bps;
        self.peak = self.peak.max(self.backlog(now_ns));
        if let Some(periods) = self.free_ns.checked_div(self.completes_ns) {
            let at_ns = (periods + 1) * self.completes_ns;
            self.sent.push_back((at_ns, self.frame_bytes.max(bytes as u64)));
        }
        self.free_ns - now_ns
    }
}

impl Node {
    pub fn new(index: usize, config: Config) -> Node {
        let data_per_packet = super::DPP;
        let limits = ArenaConfig { data_per_packet, limit_bytes: 1 << 30, headroom: 0 };
        let arena = Arena::new(std::sync::Arc::new(Heap::default()), limits).expect("arena");
        Node::with_arena(index, config, arena)
    }

    pub fn with_arena(index: usize, config: Config, arena: Arena) -> Node {
        Node::with_framing(index, config, arena, MAX_FRAME.into())
    }

    pub fn with_framing(index: usize, config: Config, arena: Arena, framing: Framing) -> Node {
        let ep = Endpoint::new(config, arena.clone(), 0xe0 + index as u64, framing);
        Node {
            ep: ep.expect("endpoint"),
            arena,
            handler: Box::new(|_, req| Action::Reply(req.to_vec())),
            executed: BTreeMap::new(),
            deferred: Vec::new(),
            nested: BTreeMap::new(),
            requests: Vec::new(),
            done: Vec::new(),
            next: VecDeque::new(),
            given: BTreeMap::new(),
            tx: TxBurst::new(),
            held: Vec::new(),
            copies: false,
            lone: 0,
            front: usize::MAX,
            copied: 0,
            allowed: 0,
            server_sent: 0,
            now_ns: 0,
            clock_ns: 0,
            deadlines: BTreeMap::new(),
            started: Vec::new(),
            messages: Vec::new(),
            large: Vec::new(),
            nic: Nic::default(),
        }
    }

    /// The node has a NIC of that rate, bit/s, which reports its backlog.
    pub fn set_nic(&mut self, rate_bps: u64) {
        self.nic = Nic { rate_bps, reports: true, ..Nic::default() };
        self.ep.set_backlog(Some(0));
    }

    /// Frames sent now: destination and bytes.
    pub fn transmit(&mut self, now_ns: u64, hold: bool, flush: bool) -> Vec<(usize, Vec<u8>)> {
        self.now_ns = now_ns;
        if self.ep.next_deadline() != Some(0) {
            return Vec::new();
        }
        let mut out = Vec::new();
        let clock_ns = now_ns + self.clock_ns;
        let copies = self.copies;
        if self.ep.asks_for_backlog() {
            assert!(self.nic.reports, "no report was made before");
            self.ep.set_backlog(Some(self.nic.report(now_ns)));
        }
        let copy = |path: PathId, frame: &[u8]| {
            if copies {
                out.push((path.0 as usize, frame.to_vec()));
            }
            copies
        };
        self.ep.poll_transmit(|| clock_ns, &mut self.tx, copy);
        self.ep.advance(clock_ns);
        assert!(out.is_empty() || self.tx.is_empty(), "a frame that is copied leaves alone");
        self.lone += out.len() as u64;
        for frame in self.tx.drain(..) {
            let bytes = bytes_of(&frame);
            out.push((frame.path.0 as usize, bytes.clone()));
            if hold {
                self.held.push((frame, bytes));
            }
        }
        if flush {
            self.flush();
        }
        out
    }

    /// The transport releases all frames.
    pub fn flush(&mut self) {
        for (frame, bytes) in self.held.drain(..) {
            assert!(bytes_of(&frame) == bytes, "a frame changed while the transport held it");
        }
    }

    /// Collects waiting completions; flushes the transport when one needs it. Returns whether there was
    /// any.
    pub fn collect(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(c) = self.ep.poll_completion() {
                self.complete(c);
                any = true;
            }
            if !self.ep.needs_flush() {
                return any;
            }
            self.flush();
            any = true;
        }
    }

    pub fn receive(&mut self, src: Addr, bytes: &[u8], now_ns: u64) {
        self.now_ns = now_ns;
        self.take(src, bytes);
    }

    /// Returns whether the endpoint accepts a frame.
    pub fn accepts(&mut self, frame: &RxFrame<'_>, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        let before = self.ep.stats().rx_frames_accepted;
        Endpoint::receive(self, frame);
        self.ep.stats().rx_frames_accepted > before
    }

    fn take(&mut self, src: Addr, bytes: &[u8]) {
        // Allocated exactly as long as the frame, so that a sanitizer detects any read beyond it.
        let frame = RxFrame::new(src, bytes, Ecn::Ect0);
        if let Some((data, rest)) = bytes.split_at_checked(self.front)
            && !rest.is_empty()
        {
            let frame = RxFrame::new(frame.src, data, frame.ecn).with_tail(Tail::from(rest));
            self.ep.prefetch_burst(&[frame, frame], 0);
            return Endpoint::receive(self, &frame);
        }
        self.ep.prefetch_burst(&[frame, frame], 0);
        Endpoint::receive(self, &frame);
    }

    fn handle(&mut self, id: RequestId, req_type: u16, body: &[u8]) {
        *self.executed.entry(req_type).or_default() += 1;
        self.requests.push(id);
        match (self.handler)(req_type, body) {
            Action::Reply(bytes) => self.reply(id, &bytes),
            Action::ReplyMsg(bytes) => {
                let mut m = self.ep.alloc(bytes.len()).expect("reply memory");
                m.copy_from_slice(&bytes);
                self.ep.reply_msg(id, m).expect("reply");
            }
            Action::Defer(after_ns, bytes) => {
                self.deferred.push((self.now_ns + after_ns, id, bytes));
            }
            Action::Status(status) => self.ep.reply_status(id, status),
            Action::Nest(session, call, len) => {
                let key = 1 << 32 | u64::from(call);
                self.nested.insert(key, id);
                self.call(session, call, len, key);
            }
            Action::Forget => {}
        }
    }

    fn reply(&mut self, id: RequestId, bytes: &[u8]) {
        // A session may have ended while its request was deferred.
        let _ = self.ep.reply_bytes(id, bytes);
    }

    fn complete(&mut self, c: Completion<'_, u64>) {
        let Completion { cont, session, request, result } = c;
        assert!(!request.is_shared(), "call {cont}: request buffer still referenced (E24)");
        let given = self.given.remove(&cont).expect("a call ended twice, or was never made");
        assert_eq!((request.as_ptr() as usize, request.len()), given, "another buffer came back");
        let want = pattern(cont & 0xffff_ffff, request.len());
        assert!(*request == want[..], "call {cont}: request buffer was changed");
        if let Some(id) = self.nested.remove(&cont) {
            match result {
                Ok(body) => self.reply(id, &body),
                Err(_) => self.ep.reply_status(id, Status::Rejected),
            }
            return;
        }
        if cont >> 32 == 2 {
            return; // a message of several packets
        }
        let result = result.map(|b| match b {
            Body::Borrowed(b) => b.to_vec(),
            Body::Owned(m) => m.to_vec(),
        });
        self.done.push(Done { id: cont, session, result, request });
        if let Some((session, id, len)) = self.next.pop_front() {
            self.call(session, id, len, id.into());
        }
    }

    fn call(&mut self, session: SessionId, id: u16, len: usize, key: u64) {
        let mut req = self.ep.alloc(len).expect("memory for a request");
        req.copy_from_slice(&pattern(id.into(), len));
        self.given.insert(key, (req.as_ptr() as usize, len));
        self.ep.call(session, id, req, key).map_err(|e| e.0).expect("a call");
    }

    /// When this node's next timer is due.
    pub fn due_ns(&self) -> Option<u64> {
        let reply = self.deferred.iter().map(|d| d.0).min();
        let own = self.ep.next_deadline().map(|t| t.saturating_sub(self.clock_ns));
        reply.into_iter().chain(own).min()
    }

    pub fn wake(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        while let Some(at) = self.deferred.iter().position(|d| d.0 <= now_ns) {
            let (_, id, bytes) = self.deferred.swap_remove(at);
            self.reply(id, &bytes);
        }
        let now_ns = now_ns + self.clock_ns;
        if self.ep.next_deadline().is_some_and(|t| t <= now_ns) {
            self.ep.on_deadline(now_ns);
        }
    }
}

impl Driver<u64> for Node {
    fn endpoint(&mut self) -> &mut Endpoint<u64> {
        &mut self.ep
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns + self.clock_ns
    }

    fn on_request(&mut self, id: RequestId, req_type: u16, body: Body<'_>, expires_ns: u64) {
        let deadline_ns = (expires_ns != u64::MAX).then_some(expires_ns);
        let deadline_ns = deadline_ns.map(|d| d.saturating_sub(self.clock_ns));
        self.started.push((req_type, self.now_ns, deadline_ns));
        self.copied += u64::from(matches!(body, Body::Owned(_)));
        self.handle(id, req_type, &body);
    }

    fn on_message(&mut self, _: SessionId, msg_type: u16, body: Body<'_>, _expires_ns: u64) {
        let whole = body[..] == pattern(msg_type.into(), body.len());
        if body.len() > super::DPP {
            self.large.push(msg_type);
        }
        self.messages.push((msg_type, self.now_ns, whole));
    }

    fn on_completion(
        &mut self,
        cont: u64,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    ) {
        self.complete(Completion { cont, session, request, result });
    }
}

fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len() as usize);
    frame.segs().iter().for_each(|s| bytes.extend_from_slice(s));
    bytes
}
