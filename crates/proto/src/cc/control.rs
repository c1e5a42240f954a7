//! The choice of a congestion control.

use serde::{Deserialize, Serialize};

/// The congestion control of an endpoint's client sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Control {
    /// None: credits alone bound what is in flight, and what waits in the host's own queue.
    None,
    /// Timely as C++ eRPC ships it, not patched `[eRPC section 5.2.1]` (E48): a rate from the
    /// gradient of the round trip. A reproduction: unfair, and slow to leave a standing queue.
    Timely,
    /// Timely with the correction of "ECN or Delay" (CoNEXT '16), which makes it fair.
    TimelyPatched,
    /// DCQCN (SIGCOMM '15): a rate from congestion marks, at most one notification per 50 us (E54).
    /// Needs switches that mark.
    Dcqcn,
    /// Swift (SIGCOMM '20): a window from the delay against a target, below one packet by pacing.
    Swift,
    /// The default: the smaller of two windows applies. The receiver limits what all its peers
    /// together may have in flight to it; the sender reacts to congestion
    /// elsewhere by marks, or by delay where nothing is marked. Only with it is the queue of the host's
    /// own kernel or NIC bounded (ADR 57).
    #[default]
    TwoWindow,
}

impl Control {
    /// All controls.
    pub const ALL: [Control; 6] = [
        Control::None,
        Control::Timely,
        Control::TimelyPatched,
        Control::Dcqcn,
        Control::Swift,
        Control::TwoWindow,
    ];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Control::None => "none",
            Control::Timely => "timely",
            Control::TimelyPatched => "timely-patched",
            Control::Dcqcn => "dcqcn",
            Control::Swift => "swift",
            Control::TwoWindow => "default",
        }
    }
}

impl std::fmt::Display for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a control.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a congestion control; choose default, none, timely, timely-patched, dcqcn or swift"
)]
pub struct UnknownControl(String);

impl std::str::FromStr for Control {
    type Err = UnknownControl;

    fn from_str(name: &str) -> Result<Self, UnknownControl> {
        let found = Control::ALL.into_iter().find(|c| c.name() == name);
        found.ok_or_else(|| UnknownControl(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for c in Control::ALL {
            assert_eq!(c.to_string().parse(), Ok(c));
            let error = "fast".parse::<Control>().expect_err("no such control").to_string();
            assert!(error.contains(c.name()), "{error}");
        }
    }
}
