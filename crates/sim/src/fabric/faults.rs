//! Faults of links: each an option, drawn from a generator of the link's own, so that the faults of
//! one link do not change those of another.

use super::NEVER;
use crate::{LinkId, Packet, Rng};

/// The faults of one direction of a cable; all off by default. Probabilities are per packet and per
/// million. They apply in this order: a test's [rule](FaultRule), bursts, loss, duplication, then
/// corruption and delay of each copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkFaults {
    /// Probability of loss.
    pub loss_ppm: u32,
    /// Loss in bursts.
    pub burst: Option<Burst>,
    /// Probability of duplication.
    pub duplicate_ppm: u32,
    /// Probability that one bit flips.
    pub corrupt_ppm: u32,
    /// Probability that a packet with a flipped bit has a check value that differs in one bit only
    /// ([`courser::Integrity::Crc`]): a receiver that ignores that bit accepts it.
    pub near_miss_ppm: u32,
    /// Probability of a delay, so that later packets overtake.
    pub reorder_ppm: u32,
    /// Longest such delay, ns; each is drawn from 1 to this.
    pub reorder_max_ns: u64,
    /// Delay of every packet beyond that of the cable, ns: makes paths unequal.
    pub extra_delay_ns: u64,
    /// Periodic link failures.
    pub flap: Option<Flap>,
}

/// Loss in bursts (Gilbert '60, Elliott '63): a link is in a good or a bad state and may change it
/// before each packet. In the long run it is bad for `enter / (enter + leave)` of the packets, for
/// `1 / leave` in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Probability of a change from good to bad.
    pub enter_ppm: u32,
    /// Probability of a change from bad to good.
    pub leave_ppm: u32,
    /// Probability of loss in the bad state.
    pub loss_ppm: u32,
}

/// A link that goes down and up. Each period is drawn from half to one and a half times its mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flap {
    /// Mean of the time up, ns; taken as [`MIN_FLAP_NS`] if less.
    pub up_ns: u64,
    /// Mean of the time down, ns; likewise.
    pub down_ns: u64,
}

/// Shortest mean of a period of a flapping link: bounds the work to follow one.
pub const MIN_FLAP_NS: u64 = 1_000;

/// Decision of a test's rule about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Deliver unchanged, whatever the rates of the link.
    Pass,
    /// Drop.
    Drop,
    /// Duplicate.
    Duplicate,
    /// Delay by this time, ns.
    Delay(u64),
    /// The receiving host delays it by this time behind its NIC, ns: an interrupt, a busy CPU. The NIC states
    /// when it has arrived ([`NicConfig::stamps_arrivals`](crate::NicConfig::stamps_arrivals)).
    DelayInHost(u64),
    /// Flip one bit, drawn from the seed.
    Corrupt,
}

/// Position and time of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// The link it is sent on.
    pub link: LinkId,
    /// When its first bit leaves, ns.
    pub now_ns: u64,
    /// Number of packets sent on the link before it.
    pub number: u64,
}

/// A test's own choice of packets: `None` leaves the decision to the rates of the link.
pub type FaultRule = Box<dyn FnMut(&Packet, &Crossing) -> Option<Fate>>;

/// The rule that delays each packet to a host behind its NIC by a time that `draw_ns` returns, in order: one
/// that is drawn a shorter time waits for those before it, as in a receive queue. It leaves the queue
/// `apart_ns` of the one before it later than that.
pub fn delay_in_order(
    mut draw_ns: impl FnMut() -> u64 + 'static,
    apart_ns: impl Fn(&Packet) -> u64 + 'static,
) -> FaultRule {
    let mut free_ns = 0_u64;
    Box::new(move |packet, crossing| {
        let at_ns = free_ns.max(crossing.now_ns + draw_ns());
        free_ns = at_ns + apart_ns(packet);
        Some(Fate::DelayInHost(at_ns - crossing.now_ns))
    })
}

/// Result of the faults for a packet on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Lost(crate::DropReason),
    /// Arrival of the packet, and of its copy if there is one.
    Arrives(Copy, Option<Copy>),
}

/// Arrival of a packet or of its copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Copy {
    pub(super) delay_ns: u64,
    /// The part of it that is behind the receiving NIC.
    pub(super) in_host_ns: u64,
    pub(super) corrupt: bool,
}

/// A link's faults and their state.
pub(super) struct FaultState {
    pub(super) faults: LinkFaults,
    pub(super) rule: Option<FaultRule>,
    rng: Rng,
    bad: bool,
    flap: FlapState,
}

/// Evaluated on use: flapping needs no events.
#[derive(Clone, Copy, Debug)]
struct FlapState {
    down: bool,
    /// Number of failures so far.
    falls: u32,
    next_ns: u64,
}

/// The cookie of a frame is the four bytes before this one, and its check value is the CRC-32C of the
/// bytes from here on.
const CHECKED: usize = 8;

/// The change of a message's CRC-32C by a flipped bit, if `bytes` are left from that bit's byte on.
/// The CRC is linear, so the rest of the message does not matter.
fn crc_change(bit: usize, bytes: usize) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    (0..8 * bytes).fold(1 << bit, step)
}

impl FaultState {
    pub(super) fn new(rng: Rng) -> Self {
        let flap = FlapState { down: false, falls: 0, next_ns: NEVER };
        FaultState { faults: LinkFaults::default(), rule: None, rng, bad: false, flap }
    }

    /// Replaces the faults; the link is up and good.
    pub(super) fn set(&mut self, now_ns: u64, faults: LinkFaults) {
        self.faults = faults;
        self.bad = false;
        self.flap.down = false;
        self.flap.next_ns = match faults.flap {
            Some(flap) => now_ns + self.period(flap.up_ns),
            None => NEVER,
        };
    }

    fn period(&mut self, mean_ns: u64) -> u64 {
        let mean = mean_ns.clamp(MIN_FLAP_NS, NEVER / 4);
        self.rng.between(mean / 2, mean + mean / 2)
    }

    /// Returns whether flapping has taken the link down, and how often so far.
    pub(super) fn flap(&mut self, now_ns: u64) -> (bool, u32) {
        while self.flap.next_ns <= now_ns {
            let Some(Flap { up_ns, down_ns }) = self.faults.flap else { break };
            self.flap.down = !self.flap.down;
            self.flap.falls += u32::from(self.flap.down);
            let mean = if self.flap.down { down_ns } else { up_ns };
            self.flap.next_ns += self.period(mean);
        }
        (self.flap.down, self.flap.falls)
    }

    /// Draws the faults of a packet.
    pub(super) fn judge(&mut self, packet: &Packet, crossing: &Crossing) -> Verdict {
        use crate::DropReason::{Burst, Loss, Predicate};
        if let Some(fate) = self.rule.as_mut().and_then(|rule| rule(packet, crossing)) {
            let base = Copy { delay_ns: self.faults.extra_delay_ns, ..Copy::default() };
            return match fate {
                Fate::Pass => Verdict::Arrives(base, None),
                Fate::Drop => Verdict::Lost(Predicate),
                Fate::Duplicate => Verdict::Arrives(base, Some(base)),
                Fate::Delay(ns) => {
                    let delay_ns = base.delay_ns.saturating_add(ns);
                    Verdict::Arrives(Copy { delay_ns, ..base }, None)
                }
                Fate::DelayInHost(ns) => {
                    let delay_ns = base.delay_ns.saturating_add(ns);
                    Verdict::Arrives(Copy { delay_ns, in_host_ns: ns, ..base }, None)
                }
                Fate::Corrupt => Verdict::Arrives(Copy { corrupt: true, ..base }, None),
            };
        }
        if self.burst_takes_it() {
            return Verdict::Lost(Burst);
        }
        if self.chance(self.faults.loss_ppm) {
            return Verdict::Lost(Loss);
        }
        let twice = self.chance(self.faults.duplicate_ppm);
        let first = self.copy();
        Verdict::Arrives(first, twice.then(|| self.copy()))
    }

    /// Draws a number only for a probability above 0.
    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.chance_ppm(ppm)
    }

    fn burst_takes_it(&mut self) -> bool {
        let Some(burst) = self.faults.burst else { return false };
        let change = if self.bad { burst.leave_ppm } else { burst.enter_ppm };
        self.bad ^= self.chance(change);
        self.bad && self.chance(burst.loss_ppm)
    }

    fn copy(&mut self) -> Copy {
        let corrupt = self.chance(self.faults.corrupt_ppm);
        let mut delay_ns = self.faults.extra_delay_ns;
        if self.chance(self.faults.reorder_ppm) {
            let late = self.rng.between(1, self.faults.reorder_max_ns.max(1));
            delay_ns = delay_ns.saturating_add(late);
        }
        Copy { delay_ns, in_host_ns: 0, corrupt }
    }

    /// Flips one bit, if there is one.
    pub(super) fn corrupt(&mut self, packet: &mut Packet) {
        packet.corrupt = true;
        if packet.bytes.len() > CHECKED && self.chance(self.faults.near_miss_ppm) {
            return self.nearly_miss(packet);
        }
        let bit = self.rng.below(8 * packet.bytes.len() as u64);
        if let Some(byte) = packet.bytes.get_mut(bit as usize / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Flips one bit after the cookie, and in the cookie all bits but one by which the CRC of the frame
    /// then differs: one bit of the check value is wrong.
    fn nearly_miss(&mut self, packet: &mut Packet) {
        let bit = self.rng.below(8 * (packet.bytes.len() - CHECKED) as u64) as usize;
        let (at, bit) = (CHECKED + bit / 8, bit % 8);
        let differs = crc_change(bit, packet.bytes.len() - at);
        let wrong = self.rng.below(differs.count_ones().into());
        let wrong = (0..wrong).fold(differs, |rest, _| rest & (rest - 1));
        let repaired = differs ^ (wrong & wrong.wrapping_neg());
        packet.bytes[at] ^= 1 << bit;
        let cookie = &mut packet.bytes[CHECKED - 4..CHECKED];
        cookie.iter_mut().zip(repaired.to_le_bytes()).for_each(|(byte, flips)| *byte ^= flips);
    }
}
