//! Controllers as published, for comparison with the default ([`super::Control`]), and their
//! constants.

mod dcqcn;
mod timely;

use crate::config::{Config, ConfigError};

pub use dcqcn::DcqcnConstants;
pub use timely::TimelyConstants;

pub(super) use dcqcn::Dcqcn;
pub(super) use timely::Timely;

/// The range of a constant, in numbers and as text.
#[derive(Clone, Copy)]
struct Range(u64, u64, &'static str);

impl Range {
    const TIME: Range = Range(1_000, 1_000_000_000, "1 us to 1 s");
    const RATE: Range = Range(8, 1_000_000_000_000, "8 bit/s to 1,000 Gbit/s");
    const STEPS: Range = Range(1, 100, "1 to 100");
    const SHIFT: Range = Range(1, 16, "1 to 16");
    const COUNTER: Range = Range(10_000, u64::MAX, "at least 10,000 bytes");
    const SHARE: Range = Range(1, 1_000_000, "1 to 1,000,000 parts per million");
}

/// Returns the first of the values that is out of its range.
fn check_all(all: &[(&'static str, u64, Range)]) -> Result<(), ConfigError> {
    for &(name, value, Range(least, most, range)) in all {
        if !(least..=most).contains(&value) {
            return Err(ConfigError { name, value, range });
        }
    }
    Ok(())
}

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
