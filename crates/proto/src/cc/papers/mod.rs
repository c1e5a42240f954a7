//! Controllers as published, for comparison with the default ([`super::Control`]).

mod dcqcn;
mod timely;

use super::constants::{DcqcnConstants, TimelyConstants};
use crate::config::Config;

pub(super) use dcqcn::Dcqcn;
pub(super) use timely::Timely;

/// The constants of an endpoint's controllers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Constants {
    dcqcn: Option<DcqcnConstants>,
    timely: Option<TimelyConstants>,
}

impl Constants {
    pub(crate) fn of(cfg: &Config) -> Self {
        Constants { dcqcn: cfg.dcqcn, timely: cfg.timely }
    }

    pub(super) fn dcqcn(&self) -> DcqcnConstants {
        self.dcqcn.unwrap_or(DcqcnConstants::PAPER)
    }

    /// Timely's, as eRPC has them unless others are set.
    pub(super) fn timely(&self, patched: bool) -> TimelyConstants {
        let of_erpc = if patched { TimelyConstants::PATCHED } else { TimelyConstants::ERPC };
        self.timely.unwrap_or(of_erpc)
    }
}
