//! Constants of the controllers of papers, by name, and the bypasses of eRPC that a run has.

use courser::{Config, DcqcnConstants, TimelyConstants};
use courser_proto::Factors;

use crate::declare::parameter::named;

/// Constants of DCQCN.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Dcqcn {
    /// [`DcqcnConstants::PAPER`].
    #[default]
    Paper,
    /// [`DcqcnConstants::vendor`].
    Vendor,
}

named!(Dcqcn {
    Dcqcn::Paper => "paper", "Those of the DCQCN paper";
    Dcqcn::Vendor => "vendor", "A vendor's, as in the simulations of HPCC";
});

/// Constants of Timely.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Timely {
    /// [`TimelyConstants::ERPC`], or [`TimelyConstants::PATCHED`] with the corrected controller.
    #[default]
    Erpc,
    /// [`TimelyConstants::PATCHED`].
    Patched,
    /// [`TimelyConstants::PAPER`].
    Paper,
}

named!(Timely {
    Timely::Erpc => "erpc", "Those of C++ eRPC, for timely-patched with those of \"ECN or Delay\"";
    Timely::Patched => "patched", "Those of C++ eRPC with those of \"ECN or Delay\"";
    Timely::Paper => "paper", "Those of the Timely paper";
});

/// Sets the constants of the controllers, for links of `rate_bps`.
pub(crate) fn set(config: &mut Config, rate_bps: u64, dcqcn: Dcqcn, timely: Timely) {
    config.dcqcn = match dcqcn {
        Dcqcn::Paper => None,
        Dcqcn::Vendor => Some(DcqcnConstants::vendor(rate_bps)),
    };
    config.timely = match timely {
        Timely::Erpc => None,
        Timely::Patched => Some(TimelyConstants::PATCHED),
        Timely::Paper => Some(TimelyConstants::PAPER),
    };
}

/// Bypasses for the common case that are switched off `[eRPC section 5.2.2]`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Without {
    /// All are on.
    #[default]
    Nothing,
    /// Updates of the rate at every frame (E50).
    Update,
    /// Packets of uncongested paths are paced (E51).
    Pacing,
    /// The clock is read for every packet (E52).
    Timestamps,
    /// All three are off.
    All,
}

named!(Without {
    Without::Nothing => "nothing", "All bypasses are on";
    Without::Update => "update", "Without the bypass of rate updates";
    Without::Pacing => "pacing", "Without the bypass of the pacer";
    Without::Timestamps => "timestamps", "Without one clock reading for a batch";
    Without::All => "all", "Without all three";
});

impl Without {
    /// Its name in options and results.
    pub(crate) fn name(self) -> &'static str {
        crate::declare::parameter::Named::named(self)
    }

    pub(crate) fn factors(self) -> Factors {
        let off = |this| self != this && self != Without::All;
        Factors {
            update_bypass: off(Without::Update),
            pacing_bypass: off(Without::Pacing),
            batched_timestamps: off(Without::Timestamps),
            ..Factors::default()
        }
    }
}
