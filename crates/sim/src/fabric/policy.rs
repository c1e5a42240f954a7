//! Policies of a switch for a packet that reaches an output queue: accept or drop it, mark it,
//! pause the sender.

use super::topology::PolicyError;
use crate::Rng;
use crate::rng::MILLION;

/// How a switch divides its buffer. A packet occupies it until its last bit was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// One pool with dynamic thresholds (Choudhury and Hahne, ToN '98): a queue accepts packets
    /// while it has fewer bytes than alpha times the free bytes of the pool. With `n` queues that
    /// never empty, each reaches alpha / (1 + n alpha) of it.
    Shared {
        /// Bytes of the pool.
        bytes: u64,
        /// Numerator of alpha.
        alpha_num: u32,
        /// Denominator of alpha.
        alpha_den: u32,
    },
    /// A fixed part for every output queue.
    PerPort {
        /// Bytes of each.
        bytes: u64,
    },
}

impl Buffer {
    /// Returns whether a packet of `size` bytes may join a queue of `queue` bytes, in a switch that
    /// stores `used` in total.
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

/// When a switch marks a packet that supports it (ECN); others pass. The criterion is the bytes in
/// the queue at that instant, without the packet itself.
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
    /// With a probability that grows from 0 at `min_bytes` to `pmax_ppm` at `max_bytes`, and each
    /// packet above (DCQCN, SIGCOMM '15: RED on the instantaneous queue).
    Red {
        /// Bytes up to which no packet is marked.
        min_bytes: u64,
        /// Bytes above which each is.
        max_bytes: u64,
        /// Probability at `max_bytes`, per million.
        pmax_ppm: u32,
    },
}

impl Marking {
    /// Returns whether a packet that finds `queue` bytes is marked. Draws a number only between the
    /// limits.
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

/// Priority flow control with one priority: a switch counts the bytes that it stores from each
/// input link, and pauses the sender of a link above a threshold. Hosts are paused but send no
/// pause frames: a NIC without descriptors drops (E60).
///
/// With it the buffer is divided by input link instead of by output queue: the switch accepts
/// `xoff_bytes` + `headroom_bytes` from each link, the sum of which must fit, and drops packets
/// beyond. Nothing is dropped where the headroom covers the bytes that arrive after the threshold
/// is crossed, see [`Pfc::headroom_for`].
///
/// Pause frames take their time on the link, after the packet that is being sent. They are
/// reliable, whatever the faults of a link: real ones are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pfc {
    /// Pauses the sender above this.
    pub xoff_bytes: u64,
    /// Resumes it at this or less.
    pub xon_bytes: u64,
    /// Room beyond `xoff_bytes`.
    pub headroom_bytes: u64,
}

impl Pfc {
    /// Bytes that a switch accepts from one link.
    pub(super) fn room(&self) -> u64 {
        self.xoff_bytes.saturating_add(self.headroom_bytes)
    }

    /// Headroom without loss on a link of this rate and delay with packets of at most
    /// `max_stored_bytes`: the packet that crosses the threshold, the one that the other end has
    /// begun when the pause arrives, the one before the pause frame, the frame itself, the bytes on
    /// the cable in both directions, and those in the switch.
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

/// A pause frame on the wire: the smallest Ethernet frame (64 bytes) with preamble and gap.
pub(super) const PAUSE_WIRE_BYTES: u32 = 84;
