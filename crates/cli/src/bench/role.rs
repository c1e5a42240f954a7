//! What the server process does at a time, told over the shared line.

/// Polls its endpoint. The role at start, whatever the line says.
pub(super) const RPC: u32 = 1;
/// Sends every datagram of the raw socket back, in trains as they came.
pub(super) const ECHO: u32 = 2;
/// Counts what the raw socket receives and reports it.
pub(super) const SINK: u32 = 3;
