//! Placement of the two cores, near or far, derived from the result of a probe.

use super::probe::ProbeError;

/// Round trips up to this are **near**: the cores share a cache. The reference machine has 45 ns
/// (hyper-threads) and 105-120 ns; twice the larger value also covers slower processors.
pub const NEAR_MAX_NS: u64 = 220;

/// Round trips from this on are **far**: the cache line crosses dies or sockets. The reference machine
/// has 420-490 ns.
pub const FAR_MIN_NS: u64 = 300;

// No stable placement has round trips between the two limits. A probe with such a result has mixed
// both placements and counts for neither.
const _: () = assert!(NEAR_MAX_NS < FAR_MIN_NS);

/// A placement that results are reported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// The two cores share a cache.
    Near,
    /// The two cores share no cache.
    Far,
}

/// Classification of a probe, a window, or a pair of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// All probes agreed.
    At(Placement),
    /// The probes disagree, or one lies between the classes: the window is dropped.
    Mixed,
    /// No probe succeeded: one core, or a peer that does not answer.
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

    /// Combines two tags: `Mixed` unless they are equal.
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
