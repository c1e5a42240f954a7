//! The loss recovery schemes, and which of them a session uses (E56).

use serde::{Deserialize, Serialize};

/// How lost packets are detected and retransmitted. The scheme is agreed for each session at
/// connect: the client's choice, unless one side chose [`Recovery::GoBackN`], which needs no
/// support of the other side and then applies. It applies as well when only one side chose
/// [`Recovery::GoBackZero`], which wastes the other side's link: neither imposes that.
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
    /// restarts from the first hole `[MELO §3.2]` (M1-M20). Tracks at most as many packets of all
    /// messages that an endpoint receives as are in flight at the rate of its link with frames of
    /// 1,472 bytes, or of its own largest if that is smaller ([`crate::Config::melo_bits`]); beyond
    /// that it behaves as go-back-N.
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
    /// Go-back-0, to compare with `[MELO §2.2, Fig. 1]` (M21): like `GoBackNNack`, but a gap or a
    /// timeout has the client send a request from its first packet again, and the server discards
    /// its packets, as NICs of that time did. A request of many packets never completes once each
    /// try loses one, so it is of no use but for comparison: any NACK causes as many retransmissions
    /// as there are credits. Responses recover as with `GoBackNNack`.
    GoBackZero,
}

impl Recovery {
    /// All schemes with which a message of any size completes, the simplest first:
    /// [`Recovery::GoBackZero`] is not among them.
    pub const ALL: [Recovery; 4] =
        [Recovery::GoBackN, Recovery::GoBackNNack, Recovery::Melo, Recovery::Selective];

    /// The name in options and results: `go-back-n`, `go-back-n-nack`, `melo`, `default`,
    /// `go-back-0`.
    pub const fn name(self) -> &'static str {
        match self {
            Recovery::GoBackN => "go-back-n",
            Recovery::GoBackNNack => "go-back-n-nack",
            Recovery::Melo => "melo",
            Recovery::Selective => "default",
            Recovery::GoBackZero => "go-back-0",
        }
    }

    /// Returns whether the receiver takes packets in order only, and the sender has no board.
    #[inline]
    pub(crate) fn is_go_back_n(self) -> bool {
        matches!(self, Recovery::GoBackN | Recovery::GoBackNNack | Recovery::GoBackZero)
    }

    /// Returns whether a packet behind a gap has the client go back.
    #[inline]
    pub(crate) fn goes_back_on_nacks(self) -> bool {
        matches!(self, Recovery::GoBackNNack | Recovery::GoBackZero)
    }

    /// The scheme of a session whose client and server have these settings.
    pub(crate) fn agreed(client: Recovery, server: Recovery) -> Recovery {
        let from_first = [client, server].map(|scheme| scheme == Recovery::GoBackZero);
        if server == Recovery::GoBackN || from_first[0] != from_first[1] {
            Recovery::GoBackN
        } else {
            client
        }
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a loss recovery scheme; choose go-back-n, go-back-n-nack, melo or default, or \
     go-back-0 to compare with"
)]
pub struct UnknownRecovery(String);

impl std::str::FromStr for Recovery {
    type Err = UnknownRecovery;

    fn from_str(name: &str) -> Result<Self, UnknownRecovery> {
        let mut named = Recovery::ALL.into_iter().chain([Recovery::GoBackZero]);
        let found = named.find(|r| r.name() == name);
        found.ok_or_else(|| UnknownRecovery(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for r in Recovery::ALL.into_iter().chain([Recovery::GoBackZero]) {
            assert_eq!(r.to_string().parse(), Ok(r));
        }
        let error = "gobackn".parse::<Recovery>().unwrap_err().to_string();
        for r in Recovery::ALL.into_iter().chain([Recovery::GoBackZero]) {
            assert!(error.contains(r.name()), "{error}");
        }
    }

    #[test]
    fn go_back_0_takes_both_sides() {
        use Recovery::{GoBackN, GoBackZero};
        assert_eq!(Recovery::agreed(GoBackZero, GoBackZero), GoBackZero);
        for other in Recovery::ALL {
            assert_eq!(Recovery::agreed(GoBackZero, other), GoBackN, "{other} at the server");
            assert_eq!(Recovery::agreed(other, GoBackZero), GoBackN, "{other} at the client");
        }
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
