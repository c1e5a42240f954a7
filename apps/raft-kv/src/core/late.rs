//! The time for which data waits for the disk, and for which the node takes no part in the cluster
//! as too much waits.

/// Time for which data waits for a disk that works, ns. Above it the state of the node has a note.
const USUAL_NS: u64 = 1_000_000_000;

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
}

impl Late {
    /// A tick has passed, in which data waited for the disk or none did.
    pub(super) fn tick(&mut self, waits: bool, now_ns: u64) {
        if waits {
            self.ticks += 1;
            self.since_ns.get_or_insert(now_ns);
        } else {
            self.progress();
        }
    }

    /// The disk has taken a frame.
    pub(super) fn progress(&mut self) {
        (self.ticks, self.since_ns) = (0, None);
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
        self.stalled_ns = None;
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_ns.is_some()
    }

    /// Times at which the node stalled.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// The state of the disk as a sentence. `None`: it takes data as usual.
    pub(super) fn note(&self, now_ns: u64) -> Option<String> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let wait_ns = self.wait_ns(now_ns);
        let is_silent = wait_ns >= USUAL_NS;
        if let Some(since_ns) = self.stalled_ns {
            let cause = match is_silent {
                true => "the disk does not answer; see that it works",
                false => "the disk is too slow for the writes; see what else uses it",
            };
            return Some(format!("stalled for {:.1} s: {cause}", seconds(now_ns - since_ns)));
        }
        is_silent
            .then(|| format!("waits for its disk for {:.1} s; see that it works", seconds(wait_ns)))
    }
}
