//! Message memory: the arena, message buffers, and the frames that cross the transport boundary.
//!
//! This crate is the only interface between protocol and transport: the protocol fills [`TxFrame`]s
//! from [`MsgBuf`]s and the transport sends them; the transport lends [`RxFrame`]s and the protocol
//! reads them. Neither depends on the other.
//!
//! # Layout of a message buffer (`[eRPC §4.2.1]`, Fig. 2)
//!
//! ```text
//! | lower headroom | header 1 | data 1 | data 2 | ... | data N | header 2 | ... | header N |
//!                             ^ contiguous application data ^
//! ```
//!
//! * The data region is contiguous: an application sees one slice (E19).
//! * Header 1 is directly before data 1: a small message is one gather entry (E20).
//! * Headers 2..N are at the end: such a packet is two gather entries (E21).
//!
//! # Memory of a buffer
//!
//! A buffer of `n` data bytes takes 128 bytes before the data (header 1 and lower-layer headers),
//! its capacity, which is `n` rounded up to a size class (at least 256, at most a quarter more
//! than `n`), and one slot for each further packet: 48 bytes and the configured headroom, rounded
//! up to 16. Its record takes 64 bytes of ordinary memory. With the default settings (a packet
//! per 1024 bytes):
//!
//! | data | capacity | memory | |
//! | ---: | ---: | ---: | --- |
//! | 32 B | 256 B | 384 B | |
//! | 1 KiB | 1 KiB | 1,152 B | |
//! | 4,000 B | 4 KiB | 4,416 B | 3 slots |
//! | 64 KiB | 64 KiB | 68,736 B | 63 slots |
//! | 8 MB | 8 MiB | 10 MiB mapped | a region of its own, whole huge pages |
//!
//! Buffers below 256 KiB come from blocks of 2 MiB, of which about 256 KiB at a time are divided
//! into buffers of one size and keep that size. Idle larger buffers are unmapped when other
//! allocations need their memory. Mapped memory never exceeds [`ArenaConfig::limit_bytes`].
//!
//! # Ownership
//!
//! 1. A [`MsgBuf`] has one owner; only the owner can write the data.
//! 2. A [`TxSeg`] is a counted reference of a transmit queue to a part of the buffer. While one
//!    exists ([`MsgBuf::is_shared`]), the data cannot be written and the memory is not reused, in
//!    whatever order both are dropped (E24, E27).
//! 3. Buffers are `Send`, may be filled and dropped on any thread, and return to their arena.

#[cfg(not(target_os = "linux"))]
compile_error!("Courser needs Linux");

mod arena;
mod atomics;
mod chunk;
mod cpu;
mod frame;
mod lend;
mod mem;
mod msgbuf;
mod runs;
mod short;
pub mod stats;
mod tail;
mod view;

pub use arena::{
    AllocError, Arena, ArenaConfig, ArenaStats, ClassStats, ConfigError, MAX_HEADROOM,
};
pub use cpu::{has_steady_ticks, prefetch, prefetch_bytes, prefetch_copy, ticks};
pub use frame::{
    Addr, COPY_AHEAD, Ecn, PathId, RX_BURST, RX_HEAD, RxBurst, RxFrame, TX_GATHER, TxBurst,
    TxFrame, drop_frames,
};
pub use lend::{Lent, Shown};
pub use mem::{Heap, HugePages, MapCause, MapError, MemorySource, REGION_ALIGN, Region};
pub use msgbuf::{HEADER_ROOM, MsgBuf, PacketAccess, SetLenError, TxSeg, Unshared};
pub use runs::{RUN_HOT, Run, Runs};
pub use short::copy_short;
pub use tail::{Tail, copy_shared};
pub use view::MsgView;
