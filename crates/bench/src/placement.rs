//! Near, far, or neither: what a probe says about where the two cores are.

use super::probe::ProbeError;

/// Round trips up to this are **near**: the cores share a cache. Measured on the
/// reference machine: 45 ns (hyper-threads) and 105-120 ns; twice the larger leaves
/// room for slower parts without reaching the other class.
pub const NEAR_MAX_NS: u64 = 220;

/// Round trips from this on are **far**: the line crosses dies or sockets. Measured on
/// the reference machine: 420-490 ns.
pub const FAR_MIN_NS: u64 = 300;

// Between the two lies a gap that no stable placement was seen in: a probe there saw
// both, and must not count for either.
const _: () = assert!(NEAR_MAX_NS < FAR_MIN_NS);

/// A placement that results are reported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// The two cores share a cache.
    Near,
    /// They do not.
    Far,
}

/// What one probe, one window, or one pair of windows is tagged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// All probes agreed.
    At(Placement),
    /// The probes disagree, or one lies between the classes: the window is dropped.
    Mixed,
    /// No probe could be made: one core, or a peer that does not answer.
    Unprobed,
}

impl Tag {
    /// Classifies one probe.
    pub fn of(probe: &Result<u64, ProbeError>) -> Self {
        match *probe {
            Err(_) => Self::Unprobed,
            Ok(ns) if ns <= NEAR_MAX_NS => Self::At(Placement::Near),
            Ok(ns) if ns >= FAR_MIN_NS => Self::At(Placement::Far),
            Ok(_) => Self::Mixed,
        }
    }

    /// The tag of something seen by both: theirs when they are equal, else `Mixed`.
    pub fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Mixed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Tag = Tag::At(Placement::Near);
    const FAR: Tag = Tag::At(Placement::Far);

    #[test]
    fn probes_are_classified_at_the_edges() {
        for (ns, tag) in [
            (0, NEAR),
            (45, NEAR),
            (220, NEAR),
            (221, Tag::Mixed),
            (299, Tag::Mixed),
            (300, FAR),
            (490, FAR),
            (u64::MAX, FAR),
        ] {
            assert_eq!(Tag::of(&Ok(ns)), tag, "{ns} ns");
        }
        assert_eq!(Tag::of(&Err(ProbeError::OneCpu)), Tag::Unprobed);
    }

    #[test]
    fn only_equal_tags_agree() {
        let all = [NEAR, FAR, Tag::Mixed, Tag::Unprobed];
        for a in all {
            for b in all {
                let expected = if a == b { a } else { Tag::Mixed };
                assert_eq!(a.and(b), expected);
            }
        }
    }
}
