//! Which scheme recovers the packets that a session's path loses (E56).

use serde::{Deserialize, Serialize};

/// How lost packets are found and sent again. The scheme belongs to a session and is agreed on when
/// it connects: the client's own choice, unless one of the two chose [`Recovery::GoBackN`], which
/// needs nothing of the other side and then holds.
///
/// A message of one packet has no order to keep: with `GoBackN` and `Melo` it waits for the
/// retransmission timeout, with `Selective` it is asked for again as soon as it is late.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Recovery {
    /// Packets are taken in order only; after a timeout everything behind the last one that is
    /// known to have arrived is sent again `[eRPC §5.3]` (E58, E59).
    GoBackN,
    /// Packets that arrive out of order are kept, the sender is told of the holes before them, and
    /// sends those once; what is lost again waits for the timeout, which starts over from the first
    /// hole `[MELO §3.2]` (M1-M20). Tracks at most 1,024 packets of all messages that an endpoint
    /// receives; beyond, it is go-back-N.
    Melo,
    /// What Courser does unless it is told otherwise. Packets that arrive out of order are kept; one
    /// is lost when another that was sent a reorder window later has been answered, however often
    /// it was sent before. The window follows the reordering that is seen. The end of a message is
    /// probed for before the timeout.
    #[default]
    Selective,
}

impl Recovery {
    /// All of them, the simplest first.
    pub const ALL: [Recovery; 3] = [Recovery::GoBackN, Recovery::Melo, Recovery::Selective];

    /// Its name in options and results: `go-back-n`, `melo`, `default`.
    pub const fn name(self) -> &'static str {
        match self {
            Recovery::GoBackN => "go-back-n",
            Recovery::Melo => "melo",
            Recovery::Selective => "default",
        }
    }

    /// What a session uses whose client and server have these settings.
    pub(crate) fn agreed(client: Recovery, server: Recovery) -> Recovery {
        if server == Recovery::GoBackN { server } else { client }
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a loss recovery scheme; choose go-back-n, melo or default")]
pub struct UnknownRecovery(String);

impl std::str::FromStr for Recovery {
    type Err = UnknownRecovery;

    fn from_str(name: &str) -> Result<Self, UnknownRecovery> {
        let found = Recovery::ALL.into_iter().find(|r| r.name() == name);
        found.ok_or_else(|| UnknownRecovery(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for r in Recovery::ALL {
            assert_eq!(r.to_string().parse(), Ok(r));
        }
        assert!("gobackn".parse::<Recovery>().unwrap_err().to_string().contains("go-back-n"));
    }

    #[test]
    fn either_side_can_insist_on_go_back_n() {
        use Recovery::{GoBackN, Melo, Selective};
        assert_eq!(Recovery::agreed(GoBackN, Selective), GoBackN);
        assert_eq!(Recovery::agreed(Selective, GoBackN), GoBackN);
        assert_eq!(Recovery::agreed(Melo, Selective), Melo);
        assert_eq!(Recovery::agreed(Selective, Melo), Selective);
    }
}
