//! Optimisations that can be switched off to measure what they save, and the slower paths that are taken
//! then (E75). Other modules have a branch to each of these paths, and nothing else of them.

mod copy;
mod paths;

/// Optimisations that are on by default, each of which can be switched off to measure what it saves
/// (`courser-lab bench factors`). Off is never better, except for the memory of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factors {
    /// Responses of one packet are written to a buffer that their slot keeps (E32). Off: each takes a
    /// buffer from the arena, and frees it.
    pub prealloc_responses: bool,
    /// Handlers read requests of one packet in the received frame `[eRPC §4.2.3]` (E28). Off: each is
    /// first copied to a buffer of its own, and rejected with [`crate::Status::NoMemory`] if there is
    /// none.
    pub zero_copy_rx: bool,
    /// The packets of larger requests are copied to their message. Off: **handlers get a message of the
    /// right length with arbitrary bytes**, to measure the cost of the server's copy
    /// (`courser bench bandwidth --no-copy`, `[eRPC §6.4]`, E78).
    pub copy_requests: bool,
    /// Congestion controllers of uncongested paths skip the update for a frame. Off: each frame is
    /// passed to them `[eRPC §5.2.2]` (E50).
    pub update_bypass: bool,
    /// Packets of uncongested paths are not paced. Off: with [`crate::Control::Timely`], `TimelyPatched`
    /// and `Dcqcn` they are paced at the rate of the link `[eRPC §5.2.2]` (E51).
    pub pacing_bypass: bool,
    /// The clock is read twice for all packets of a pass, at receipt and before the answers leave. Off:
    /// the event loop reads it once more for each packet and direction, 10 ns `[eRPC §5.2.2]` (E52).
    pub batched_timestamps: bool,
}

impl Default for Factors {
    fn default() -> Self {
        Factors {
            prealloc_responses: true,
            zero_copy_rx: true,
            copy_requests: true,
            update_bypass: true,
            pacing_bypass: true,
            batched_timestamps: true,
        }
    }
}
