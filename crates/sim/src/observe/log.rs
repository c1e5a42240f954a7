//! The event log: a number that is equal for two runs only if the same events happened at the same
//! times, and optionally the events themselves.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::Sink;

/// A running hash of a sequence of numbers and byte strings: the same on every machine and build,
/// not cryptographic.
///
/// Numbers are mixed by splitmix64's finisher, which is a bijection of the state; bytes enter as
/// their XXH3 (64 bits). About 2 ns for a number, 0.1 ns a byte for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0x9e37_79b9_7f4a_7c15)
    }
}

impl Digest {
    /// The empty digest.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number.
    #[inline]
    pub fn mix(&mut self, v: u64) {
        let mut z = (self.0 ^ v).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }

    /// Adds a byte string including its length: `ab`, `c` differs from `a`, `bc`.
    #[inline]
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(xxh3_64(bytes));
        self.mix(bytes.len() as u64);
    }

    /// The hash of all that was added.
    pub fn finish(self) -> u64 {
        self.0
    }
}

/// Kinds of entries. The numbers are part of the digest: add new kinds at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Entry {
    /// A packet left for a link: link, packet.
    Sent = 1,
    /// A packet was dropped: kind of place, its number, reason, packet; its bytes.
    Dropped = 2,
    /// A packet reached an endpoint's receive queue: host, packet; its bytes.
    Delivered = 3,
    /// A switch marked a packet: link, packet.
    Marked = 4,
    /// A call ended: host, time it took (ns), bytes of its messages.
    Completed = 5,
    /// An event of the world itself: a crash, a partition, a pause; with its text.
    World = 6,
}

/// The digest of the events in order, and optionally their text.
pub struct EventLog {
    digest: Digest,
    entries: u64,
    text: Option<Sink>,
}

impl EventLog {
    /// A log; with `text`, every entry is also a line there, for comparing two runs:
    /// `entry-number time-ns kind numbers... xxh3-of-the-bytes`.
    pub fn new(text: Option<Sink>) -> Self {
        EventLog { digest: Digest::new(), entries: 0, text }
    }

    /// Adds an entry.
    #[inline]
    pub fn record(&mut self, at_ns: u64, entry: Entry, ids: &[u64], bytes: &[u8]) {
        self.entries += 1;
        self.digest.mix(at_ns);
        self.digest.mix(entry as u64 | (ids.len() as u64) << 8);
        for &id in ids {
            self.digest.mix(id);
        }
        if !bytes.is_empty() {
            self.digest.mix_bytes(bytes);
        }
        if self.text.is_some() {
            self.write(at_ns, entry, ids, bytes);
        }
    }

    fn write(&mut self, at_ns: u64, entry: Entry, ids: &[u64], bytes: &[u8]) {
        let number = self.entries;
        let Some(sink) = &mut self.text else { return };
        sink.run(|out| {
            write!(out, "{number} {at_ns} {entry:?}")?;
            for id in ids {
                write!(out, " {id}")?;
            }
            if !bytes.is_empty() {
                write!(out, " {:016x}", xxh3_64(bytes))?;
            }
            writeln!(out)
        });
    }

    /// The hash of all entries so far.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Flushes buffered text; returns the first error of writing.
    pub(super) fn flush(&mut self) -> Option<String> {
        self.text.as_mut().and_then(Sink::flush)
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog")
            .field("digest", &format_args!("{:016x}", self.digest()))
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sink::tests::Shared;
    use super::*;

    #[test]
    fn xxh3_and_the_mixer_match_the_reference_values() {
        // The hash of the empty string is from the reference implementation; the last value too was
        // computed with another implementation of both.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        // First value of splitmix64 for seed 0, whose first state is that of an empty digest.
        let mut d = Digest(0);
        d.mix(0);
        assert_eq!(d.finish(), 0xe220_a839_7b1d_cdaf);
        let mut d = Digest::new();
        d.mix(7);
        d.mix_bytes(b"courser");
        assert_eq!(d.finish(), 0xfbd7_5686_6e1d_1f74);
    }

    #[test]
    fn order_time_and_every_field_count() {
        let log = |entries: &[(u64, Entry, &[u64], &[u8])]| {
            let mut log = EventLog::new(None);
            entries.iter().for_each(|&(t, e, ids, bytes)| log.record(t, e, ids, bytes));
            log.digest()
        };
        let a: (u64, Entry, &[u64], &[u8]) = (1, Entry::Sent, &[1, 2], b"x");
        let b: (u64, Entry, &[u64], &[u8]) = (1, Entry::Sent, &[1, 3], b"x");
        let all = [
            log(&[]),
            log(&[a]),
            log(&[b]),
            log(&[a, b]),
            log(&[b, a]),
            log(&[(2, Entry::Sent, &[1, 2], b"x")]),
            log(&[(1, Entry::Marked, &[1, 2], b"x")]),
            log(&[(1, Entry::Sent, &[1, 2], b"y")]),
            log(&[(1, Entry::Sent, &[1, 2], b"")]),
            log(&[(1, Entry::Sent, &[1, 2, 0], b"")]),
        ];
        for (i, x) in all.iter().enumerate() {
            assert!(!all[..i].contains(x), "{i}: {all:x?}");
        }
        assert_eq!(log(&[a, b]), all[3]);
    }

    #[test]
    fn text_is_a_line_an_entry_and_changes_no_digest() {
        let out = Shared::default();
        let mut log = EventLog::new(Some(Sink::new(out.clone())));
        let mut silent = EventLog::new(None);
        for l in [&mut log, &mut silent] {
            l.record(1_500, Entry::Sent, &[4, 1], &[]);
            l.record(2_500, Entry::Delivered, &[0, 1], b"");
            l.record(2_500, Entry::Delivered, &[0, 2], b"ab");
        }
        assert_eq!(log.flush(), None);
        let text = out.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["1 1500 Sent 4 1", "2 2500 Delivered 0 1"]);
        assert!(lines[2].starts_with("3 2500 Delivered 0 2 ") && lines.len() == 3, "{text}");
        assert_eq!((log.digest(), log.entries()), (silent.digest(), 3));
    }
}
