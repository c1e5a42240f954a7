//! Follows the kernel's messages and the daemon's life.

use super::*;

impl Import {
    /// Follows the daemon: its routes are withdrawn after its end.
    pub(super) fn follow_daemon(&mut self, now_ns: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        let event = daemon.poll(now_ns);
        let (path, is_usable) = (daemon.path.display(), daemon.is_usable());
        let routes = self.imported.len();
        let text = match event {
            None if is_usable || !self.warned.insert("daemon") => None,
            None => Some(format!(
                "no routing daemon answers at {path} ({}): its routes are used when it does",
                daemon.refusal()
            )),
            Some(Event::Began) if self.warned.insert("daemon") => None,
            Some(Event::Began) => Some(format!("the routing daemon of {path} is there")),
            Some(Event::Ended) => Some(format!(
                "the routing daemon of {path} has ended: its {routes} routes are withdrawn unless it \
                 comes back within the grace time"
            )),
            Some(Event::Expired) => Some(format!(
                "the routing daemon of {path} has not come back: its {routes} routes are withdrawn"
            )),
        };
        self.warnings.extend(text);
        if is_usable != self.is_active {
            self.is_active = is_usable;
            let removes = self.walk.is_some_and(|walk| walk.removes);
            self.walk = Some(Walk { after: None, removes });
        }
    }

    /// Begins a reading if one is wanted.
    pub(super) fn begin_reading(&mut self, now_ns: u64) {
        if let Some(reading) = self.reading {
            if now_ns.saturating_sub(reading.last_ns) < SILENCE_NS {
                return;
            }
            self.give_up(now_ns);
        }
        if self.again_ns.is_some_and(|again_ns| now_ns >= again_ns) {
            self.is_outdated = true;
        }
        if self.is_outdated && now_ns >= self.not_before_ns {
            self.again_ns = None;
            self.is_outdated = false;
            self.counters.readings += 1;
            self.table.begin();
            // Its routes are compared, but none is removed: all have to occur in the new one.
            self.walk = self.walk.map(|walk| Walk { removes: false, ..walk });
            self.request(Part::Interfaces, now_ns, now_ns);
        }
    }

    fn request(&mut self, part: Part, begin_ns: u64, now_ns: u64) {
        let number = self.next;
        // 0 is in reports.
        self.next = self.next.wrapping_add(1).max(1);
        let is_incomplete = self.reading.is_some_and(|reading| reading.is_incomplete);
        self.reading = Some(Reading { part, number, begin_ns, last_ns: now_ns, is_incomplete });
        if let Err(error) = self.kernel.request(part, self.number, number) {
            self.warn("request", |own| {
                format!("the kernel's table {} cannot be read: {error}", own.number)
            });
            self.give_up(now_ns);
        }
    }

    /// The reading has failed. Another one begins after a pause.
    fn give_up(&mut self, now_ns: u64) {
        if self.reading.take().is_some() {
            self.table.end();
        }
        self.is_outdated = true;
        self.not_before_ns = now_ns.saturating_add(PAUSE_NS);
    }

    /// Takes over messages.
    pub(super) fn take_messages(&mut self, now_ns: u64) {
        for _ in 0..MESSAGES {
            if self.at >= self.buffer.len() && !self.receive(now_ns) {
                return;
            }
            if self.buffer.is_empty() {
                continue;
            }
            let (length, message) = message::parse(&self.buffer[self.at..], self.number);
            self.at += length;
            match message {
                Some(message) => self.take(message, now_ns),
                None => {
                    self.counters.malformed += 1;
                    // It may have been a change. In a reading, another one would not help.
                    self.is_outdated |= self.reading.is_none();
                }
            }
            if self.work >= WORK {
                return;
            }
        }
    }

    /// Reads messages into the buffer. False: there is none now.
    fn receive(&mut self, now_ns: u64) -> bool {
        self.buffer.clear();
        self.at = 0;
        match self.kernel.receive(&mut self.buffer) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.lose();
                true
            }
            Err(error) => {
                self.read_ns = now_ns;
                let kind = error.kind();
                if !matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    self.lose();
                    self.warn("receive", |own| {
                        format!("changes of the kernel's table {} are lost: {error}", own.number)
                    });
                }
                false
            }
        }
    }

    /// Changes were lost.
    fn lose(&mut self) {
        self.counters.overflows += 1;
        self.is_outdated = true;
        if let Some(reading) = &mut self.reading {
            reading.is_incomplete = true;
        }
    }

    fn take(&mut self, message: Message, now_ns: u64) {
        let number = self.reading.map(|reading| reading.number);
        match message.content {
            Content::Route(message::Kind::Dumped(of), _) if Some(of) != number => return,
            Content::Done(of, _) | Content::Refused(of) if Some(of) != number => return,
            _ => {}
        }
        if let Some(reading) = &mut self.reading {
            reading.last_ns = now_ns;
            if message.is_interrupted {
                reading.is_incomplete = true;
                self.is_outdated = true;
            }
        }
        match message.content {
            Content::Route(kind, route) => self.take_route(kind, route, now_ns),
            Content::Interface { index, name, is_up } => self.take_interface(index, &name, is_up),
            Content::InterfaceGone(index) => {
                self.is_outdated |= self.interfaces.remove(&index).is_some();
            }
            Content::AddressGone => self.is_outdated = true,
            Content::Object(object) => self.is_outdated |= self.table.uses(object),
            // The table is empty if it does not exist.
            Content::Done(_, 0) => self.end_part(now_ns),
            Content::Done(_, error) if error == -libc::ENOENT => self.end_part(now_ns),
            Content::Done(..) | Content::Refused(_) => self.give_up(now_ns),
            Content::Overrun => self.lose(),
            Content::Other => {}
        }
    }

    fn take_route(&mut self, kind: message::Kind, route: message::KernelRoute, now_ns: u64) {
        let prefix = route.prefix;
        // When its tree of IPv6 routes has changed, the kernel's walk goes on by their number: it leaves
        // out as many as were removed, and does not report that.
        if kind == message::Kind::Deleted
            && prefix.addr().is_ipv6()
            && let Some(reading) = self.reading.as_mut().filter(|reading| reading.part == Part::V6)
        {
            reading.is_incomplete = true;
            self.is_outdated = true;
        }
        match self.table.apply(kind, route) {
            Effect::None => {}
            Effect::Changed => self.compare(prefix),
            Effect::Removed => self.leaving.push_back((now_ns.saturating_add(HOLD_NS), prefix)),
            Effect::Unclear => self.is_outdated = true,
        }
        if self.table.is_full {
            self.again_ns.get_or_insert(now_ns.saturating_add(AGAIN_NS));
            self.warn("full", |own| {
                format!(
                    "the kernel's table {} has more than {} routes: others are left out; raise \
                     `limit` of [node.import], or let the daemon export fewer",
                    own.number,
                    own.table.len()
                )
            });
        }
    }

    /// An interface is there, perhaps with another name or index than before.
    fn take_interface(&mut self, index: u32, name: &str, is_up: bool) {
        let port = self.ports.iter().position(|port| port.interface == name);
        let port = port.map(|port| (port as PortId, is_up));
        if self.interfaces.get(&index).copied() == port {
            return;
        }
        // The routes of a reading follow after all interfaces.
        self.is_outdated |= self.reading.is_none_or(|reading| reading.part != Part::Interfaces);
        self.interfaces.remove(&index);
        if let Some(port) = port {
            self.interfaces.retain(|_, other| other.0 != port.0);
            self.interfaces.insert(index, port);
        }
    }

    /// A part of the reading is complete.
    fn end_part(&mut self, now_ns: u64) {
        let Some(reading) = self.reading else { return };
        if let Some(part) = reading.part.next() {
            return self.request(part, reading.begin_ns, now_ns);
        }
        self.reading = None;
        self.table.end();
        let taken_ns = now_ns.saturating_sub(reading.begin_ns);
        self.not_before_ns = now_ns.saturating_add(PAUSE_NS.max(taken_ns));
        self.walk = Some(Walk { after: None, removes: !reading.is_incomplete });
        for kind in ["request", "receive"] {
            self.warned.remove(kind);
        }
        if !self.table.is_full {
            self.warned.remove("full");
        }
        if self.refused.is_empty() {
            self.warned.remove("refused");
        }
    }

    /// Compares some routes with the table.
    pub(super) fn walk(&mut self) {
        for _ in 0..COMPARED {
            let Some(walk) = &mut self.walk else { return };
            if self.work >= WORK {
                return;
            }
            let Some((key, is_present)) = self.table.next(walk.after) else {
                self.walk = None;
                return;
            };
            walk.after = Some(key);
            if walk.removes && !is_present {
                self.table.remove(key);
            }
            self.compare(key.0);
        }
    }
}
