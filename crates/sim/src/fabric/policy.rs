//! What a switch does with a packet that comes to an output queue: take it or drop it, mark it,
//! ask the sender to pause.

use super::topology::PolicyError;
use crate::Rng;
use crate::rng::MILLION;

/// How a switch shares out its buffer. What is being sent takes room until its last bit has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// One pool with dynamic thresholds (Choudhury and Hahne, ToN '98): a queue takes a packet as
    /// long as it holds less than alpha times what is free in the pool. With `n` queues that never
    /// empty, each comes to hold alpha / (1 + n alpha) of it.
    Shared {
        /// Bytes of the pool.
        bytes: u64,
        /// Alpha is this
        alpha_num: u32,
        /// by this.
        alpha_den: u32,
    },
    /// Every output queue has a part of its own.
    PerPort {
        /// Bytes of each.
        bytes: u64,
    },
}

impl Buffer {
    /// Whether a packet of `size` bytes may join a queue that holds `queue` bytes, in a switch that
    /// holds `used` altogether.
    pub(super) fn admits(&self, queue: u64, used: u64, size: u32) -> bool {
        let size = u64::from(size);
        match *self {
            Buffer::Shared { bytes, alpha_num, alpha_den } => {
                let free = bytes.saturating_sub(used);
                size <= free
                    && u128::from(queue) * u128::from(alpha_den)
                        < u128::from(free) * u128::from(alpha_num)
            }
            Buffer::PerPort { bytes } => queue + size <= bytes,
        }
    }

    pub(super) fn check(&self, pfc: Option<Pfc>, ports: u64) -> Result<(), PolicyError> {
        let total = match *self {
            Buffer::Shared { bytes, alpha_num, alpha_den } => {
                if bytes == 0 || alpha_num == 0 || alpha_den == 0 {
                    return Err(PolicyError::Buffer);
                }
                bytes
            }
            Buffer::PerPort { bytes: 0 } => return Err(PolicyError::Buffer),
            Buffer::PerPort { bytes } => bytes.saturating_mul(ports),
        };
        let Some(pfc) = pfc else { return Ok(()) };
        if pfc.xon_bytes > pfc.xoff_bytes {
            return Err(PolicyError::PfcThresholds);
        }
        let each = pfc.room();
        if each.saturating_mul(ports) > total {
            return Err(PolicyError::PfcRoom { ports, each, buffer: total });
        }
        Ok(())
    }
}

/// When a switch marks a packet that can be marked (ECN); others pass. What counts is the bytes
/// that the queue holds at that instant, without the packet itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Marking {
    /// Never.
    #[default]
    Off,
    /// Each packet that finds more than this (DCTCP, SIGCOMM '10).
    Step {
        /// Bytes, DCTCP's K.
        k_bytes: u64,
    },
    /// With a chance that grows from 0 at `min_bytes` to `pmax_ppm` at `max_bytes`, and each packet
    /// above (DCQCN, SIGCOMM '15: RED on the instantaneous queue).
    Red {
        /// Bytes up to which no packet is marked.
        min_bytes: u64,
        /// Bytes above which each is.
        max_bytes: u64,
        /// Chance at `max_bytes`, per million.
        pmax_ppm: u32,
    },
}

impl Marking {
    /// Whether a packet that finds `queue` bytes is marked. Draws only where there is a choice.
    pub(super) fn marks(&self, queue: u64, rng: &mut Rng) -> bool {
        match *self {
            Marking::Off => false,
            Marking::Step { k_bytes } => queue > k_bytes,
            Marking::Red { min_bytes, .. } if queue <= min_bytes => false,
            Marking::Red { max_bytes, .. } if queue > max_bytes => true,
            Marking::Red { min_bytes, max_bytes, pmax_ppm } => {
                let part = u128::from(queue - min_bytes) * u128::from(pmax_ppm);
                let chance = part / u128::from(max_bytes - min_bytes);
                rng.chance_ppm(chance as u32)
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), PolicyError> {
        match *self {
            Marking::Red { min_bytes, max_bytes, pmax_ppm }
                if min_bytes >= max_bytes || pmax_ppm > MILLION =>
            {
                Err(PolicyError::Marking)
            }
            _ => Ok(()),
        }
    }
}

/// Priority flow control with one priority: a switch counts what it holds from each of its input
/// links, and lets the sender of a link pause when that is too much. Hosts are paused by it, they
/// pause nobody: a NIC without descriptors drops (E60).
///
/// With it the buffer is cut by input link instead of by output queue: from each link the switch
/// takes `xoff_bytes` + `headroom_bytes`, which must fit in altogether, and a packet beyond is
/// dropped. Nothing is dropped where the headroom covers what arrives after the threshold is
/// crossed, see [`Pfc::headroom_for`].
///
/// Pause frames take their time on the link, behind the packet that is being sent. They are
/// reliable, whatever the faults of a link: real ones are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pfc {
    /// Pauses the sender when it holds more than this.
    pub xoff_bytes: u64,
    /// Lets it go on at this or less.
    pub xon_bytes: u64,
    /// Room beyond `xoff_bytes`.
    pub headroom_bytes: u64,
}

impl Pfc {
    /// Bytes that a switch takes from one link.
    pub(super) fn room(&self) -> u64 {
        self.xoff_bytes.saturating_add(self.headroom_bytes)
    }

    /// Headroom with which nothing is lost on a link of this rate and delay with packets of at most
    /// `max_stored_bytes`: the packet that crosses the threshold, the one that the other end has
    /// begun when the pause arrives, the one that the pause frame waits for, the frame itself, what
    /// is on the cable for its two ways, and what is on its way through the switch.
    pub fn headroom_for(
        rate_bps: u64,
        delay_ns: u64,
        latency_ns: u64,
        max_stored_bytes: u32,
    ) -> u64 {
        let time = 2 * u128::from(delay_ns) + u128::from(latency_ns);
        let flying = time.saturating_mul(u128::from(rate_bps)).div_ceil(8_000_000_000);
        let packets = 3 * u64::from(max_stored_bytes) + u64::from(PAUSE_WIRE_BYTES);
        u64::try_from(flying).unwrap_or(u64::MAX).saturating_add(packets)
    }
}

/// A pause frame on the wire: the least Ethernet frame (64 bytes) with preamble and gap.
pub(super) const PAUSE_WIRE_BYTES: u32 = 84;
