//! The loss recovery schemes, and which of them a session uses (E56).

use serde::{Deserialize, Serialize};

/// How lost packets are detected and retransmitted. The scheme is agreed for each session at
/// connect: the client's choice, unless one side chose [`Recovery::GoBackN`], which needs no
/// support of the other side and then applies.
///
/// For messages of one packet all schemes wait for the retransmission timeout, except `Selective`:
/// it sends a tail-loss probe as soon as the answer is late.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Recovery {
    /// The receiver takes packets in order only. After a timeout everything after the last
    /// acknowledged packet is sent again `[eRPC §5.3]` (E58, E59).
    GoBackN,
    /// The receiver keeps packets that arrive out of order and reports holes; the sender
    /// retransmits each hole once. A retransmission that is lost waits for the timeout, which
    /// restarts from the first hole `[MELO §3.2]` (M1-M20). Tracks at most 1,024 packets of all
    /// messages that an endpoint receives; beyond that it behaves as go-back-N.
    Melo,
    /// The default. The receiver keeps packets that arrive out of order. A packet is lost when
    /// another packet, sent more than a reordering window later, has been acknowledged;
    /// retransmissions are treated alike. The window adapts to the observed reordering. The end of
    /// a message is probed before the timeout.
    #[default]
    Selective,
    /// Go-back-N as in RDMA NICs, to compare with `[MELO §2.2, §4]` (M29). The receiver takes
    /// packets in order only. The first packet behind a gap makes it request the sender to go back to
    /// the missing packet: once for each gap. The timeout applies when that retransmission is lost
    /// too, or the last packets of a message.
    GoBackNNack,
}

impl Recovery {
    /// All schemes, the simplest first.
    pub const ALL: [Recovery; 4] =
        [Recovery::GoBackN, Recovery::GoBackNNack, Recovery::Melo, Recovery::Selective];

    /// The name in options and results: `go-back-n`, `go-back-n-nack`, `melo`, `default`.
    pub const fn name(self) -> &'static str {
        match self {
            Recovery::GoBackN => "go-back-n",
            Recovery::GoBackNNack => "go-back-n-nack",
            Recovery::Melo => "melo",
            Recovery::Selective => "default",
        }
    }

    /// Returns whether the receiver takes packets in order only, and the sender has no board.
    #[inline]
    pub(crate) fn is_go_back_n(self) -> bool {
        matches!(self, Recovery::GoBackN | Recovery::GoBackNNack)
    }

    /// The scheme of a session whose client and server have these settings.
    pub(crate) fn agreed(client: Recovery, server: Recovery) -> Recovery {
        if server == Recovery::GoBackN { server } else { client }
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a loss recovery scheme; choose go-back-n, go-back-n-nack, melo or default")]
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
        use Recovery::{GoBackN, GoBackNNack, Melo, Selective};
        assert_eq!(Recovery::agreed(GoBackN, Selective), GoBackN);
        assert_eq!(Recovery::agreed(Selective, GoBackN), GoBackN);
        assert_eq!(Recovery::agreed(GoBackNNack, GoBackN), GoBackN);
        assert_eq!(Recovery::agreed(GoBackNNack, Selective), GoBackNNack);
        assert_eq!(Recovery::agreed(Melo, Selective), Melo);
        assert_eq!(Recovery::agreed(Selective, Melo), Selective);
    }
}
