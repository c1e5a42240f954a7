//! The time for which data waits for the disk, and for which the node takes no part in the cluster
//! as too much waits.

/// Time for which data waits for a disk that works, ns. Above it the state of the node has a note.
const USUAL_NS: u64 = 1_000_000_000;
/// Time for which each byte of a received snapshot may make data wait in addition, ns: 20 MB/s.
const SNAPSHOT_NS: u64 = 50;

/// Progress of the disk.
#[derive(Default, Debug)]
pub(super) struct Late {
    /// Ticks for which data has waited since the disk took a frame.
    ticks: usize,
    /// The time at which that began.
    since_ns: Option<u64>,
    /// The time at which the node stalled.
    stalled_ns: Option<u64>,
    stalls: u64,
    /// The disk has not answered for longer than usual since the node stalled. A disk that answers at times
    /// does not make the node report two causes in turn.
    was_silent: bool,
    /// Bytes of the received snapshot that is being written.
    snapshot_bytes: Option<usize>,
}

impl Late {
    /// A tick has passed, in which data waited for the disk or none did.
    pub(super) fn tick(&mut self, waits: bool, now_ns: u64) {
        if waits {
            self.ticks += 1;
            self.since_ns.get_or_insert(now_ns);
            self.was_silent = self.is_stalled() && self.is_silent(now_ns);
        } else {
            self.progress();
        }
    }

    /// The disk has taken a frame.
    pub(super) fn progress(&mut self) {
        (self.ticks, self.since_ns, self.snapshot_bytes) = (0, None, None);
    }

    /// Ticks for which data has waited since the disk took a frame.
    pub(super) fn ticks(&self) -> usize {
        self.ticks
    }

    /// Time for which data has waited since the disk took a frame, ns. 0: none waits.
    pub(super) fn wait_ns(&self, now_ns: u64) -> u64 {
        self.since_ns.map_or(0, |since_ns| now_ns - since_ns)
    }

    /// The node takes no part in the cluster until [`Late::end_stall`].
    pub(super) fn stall(&mut self, now_ns: u64) {
        self.stalled_ns = Some(now_ns);
        self.stalls += 1;
    }

    pub(super) fn end_stall(&mut self) {
        (self.stalled_ns, self.was_silent) = (None, false);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_ns.is_some()
    }

    /// Times at which the node stalled.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// A frame is being written, with a received snapshot of some bytes or none.
    pub(super) fn writes(&mut self, snapshot_bytes: Option<usize>) {
        self.snapshot_bytes = snapshot_bytes;
    }

    fn is_silent(&self, now_ns: u64) -> bool {
        let bytes = self.snapshot_bytes.unwrap_or(0) as u64;
        let usual_ns = USUAL_NS.saturating_add(SNAPSHOT_NS.saturating_mul(bytes));
        self.was_silent || self.wait_ns(now_ns) >= usual_ns
    }

    /// Why data waits, as a sentence. `None`: the disk takes data as usual.
    pub(super) fn cause(&self, now_ns: u64) -> Option<String> {
        match self.snapshot_bytes {
            _ if self.is_silent(now_ns) => {
                Some("the disk does not answer; see that it works".to_owned())
            }
            Some(bytes) if self.is_stalled() || self.wait_ns(now_ns) >= USUAL_NS => {
                Some(format!("the disk takes a received snapshot of {bytes} bytes"))
            }
            _ => self
                .is_stalled()
                .then(|| "the disk is too slow for the writes; see what else uses it".to_owned()),
        }
    }

    /// The state of the disk with its time. `None`: it takes data as usual.
    pub(super) fn note(&self, now_ns: u64) -> Option<String> {
        let cause = self.cause(now_ns)?;
        let (state, ns) = match self.stalled_ns {
            Some(since_ns) => ("stalled", now_ns - since_ns),
            None => ("waits for its disk", self.wait_ns(now_ns)),
        };
        Some(format!("{state} for {:.1} s: {cause}", ns as f64 / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SILENT: &str = "the disk does not answer; see that it works";
    const SLOW: &str = "the disk is too slow for the writes; see what else uses it";

    #[test]
    fn a_stall_has_one_cause_when_the_disk_answers_at_times() {
        let mut late = Late::default();
        late.tick(true, 0);
        assert_eq!(late.cause(999 * MS), None);
        late.stall(10 * MS);
        assert_eq!(late.cause(999 * MS).as_deref(), Some(SLOW));
        late.tick(true, 1_000 * MS);
        late.progress();
        late.tick(true, 1_100 * MS);
        assert_eq!(late.cause(1_100 * MS).as_deref(), Some(SILENT));
        late.end_stall();
        assert_eq!(late.cause(1_100 * MS), None);
        late.stall(1_200 * MS);
        assert_eq!(late.note(1_500 * MS), Some(format!("stalled for 0.3 s: {SLOW}")));
    }

    #[test]
    fn a_disk_that_takes_a_received_snapshot_is_not_called_silent() {
        let mut late = Late::default();
        late.writes(Some(100_000_000));
        late.tick(true, 0);
        assert_eq!(late.cause(999 * MS), None);
        let text = "the disk takes a received snapshot of 100000000 bytes";
        assert_eq!(late.note(1_500 * MS), Some(format!("waits for its disk for 1.5 s: {text}")));
        assert_eq!(late.cause(5_999 * MS).as_deref(), Some(text));
        // Slower than 20 MB/s.
        assert_eq!(late.cause(6_000 * MS).as_deref(), Some(SILENT));
        late.progress();
        late.tick(true, 6_000 * MS);
        assert_eq!(late.cause(7_000 * MS).as_deref(), Some(SILENT));
    }
}
