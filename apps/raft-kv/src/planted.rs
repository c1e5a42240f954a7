//! Planted bugs, with the feature `planted`: the tests in the simulator have to find each of them.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// The leader answers before the entry is committed.
    ReplyBeforeCommit,
    /// A retry of a write is applied again.
    ApplyTwice,
    /// The leader reads without a quorum's word that it leads.
    ReadWithoutQuorum,
    /// Entries count as durable without a sync.
    SkipSync,
    /// A snapshot lacks the last entry that it claims.
    ShortSnapshot,
}

/// The bug that this node has: none without the feature.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

impl Planted {
    /// A node with a bug.
    #[cfg(feature = "planted")]
    pub fn with(bug: Bug) -> Planted {
        Planted { bug: Some(bug) }
    }

    /// Returns whether the node has this bug.
    #[inline]
    pub fn has(self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}
