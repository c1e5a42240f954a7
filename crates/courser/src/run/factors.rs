//! The slower path of the event loop with [`courser_proto::Factors::batched_timestamps`] off.

use crate::core::Core;
use crate::core::app::App;

impl<A: App> Core<A> {
    /// Reads the clock once for each of these packets.
    pub(crate) fn read_clock_for(&mut self, packets: u64) {
        for _ in 0..packets {
            std::hint::black_box(self.now_ns());
        }
    }
}
