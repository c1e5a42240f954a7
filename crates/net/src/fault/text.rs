//! Faults in text: `loss=1e-3`, `loss=0.01,reorder=0.02,span=8`.

use std::fmt;
use std::str::FromStr;

use super::FaultPlan;
use super::plan::MILLION;

/// The text describes no faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultSyntax {
    /// A part is not `name=value`, or the name is unknown.
    #[error(
        "{0:?} is not a fault (there are loss, duplicate, reorder, span, corrupt); write loss=1e-3"
    )]
    Name(String),
    /// A share of frames is out of range.
    #[error("{0}={1:?} is out of range; write the share of frames, 0 or 1e-6 to 1")]
    Share(&'static str, String),
    /// The span is no number.
    #[error("span={0:?} is out of range; write how many later frames may pass, 1 to 4096")]
    Span(String),
    /// A name occurs twice.
    #[error("{0} is given twice; write it once")]
    Twice(String),
    /// The shares add up to more than 1: a frame has at most one fault.
    #[error("the shares of all faults together are more than 1; lower them")]
    TooMany,
}

/// Largest span in text: the number of frames that are kept.
const MAX_SPAN: u32 = super::STORE as u32;

/// No faults, in text.
const NONE: &str = "none";

/// Reads a share of frames as frames per million.
fn share(name: &'static str, value: &str) -> Result<u32, FaultSyntax> {
    let wrong = || FaultSyntax::Share(name, shown(value));
    let share: f64 = value.parse().map_err(|_| wrong())?;
    let ppm = (share * f64::from(MILLION)).round();
    // A share below a millionth must not be read as none.
    let fits = (0.0..=1.0).contains(&share) && (share == 0.0 || ppm >= 1.0);
    if fits { Ok(ppm as u32) } else { Err(wrong()) }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// `name=value` parts with commas between: `loss`, `duplicate`, `reorder` and `corrupt` are shares
/// of frames, to a millionth; `span` is [`FaultPlan::reorder_span`]. `none` and the empty text are
/// no faults.
impl FromStr for FaultPlan {
    type Err = FaultSyntax;

    fn from_str(text: &str) -> Result<Self, FaultSyntax> {
        let (mut plan, mut seen) = (FaultPlan::default(), Vec::new());
        if text.trim() == NONE {
            return Ok(plan);
        }
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| FaultSyntax::Name(shown(part)))?;
            if seen.contains(&name) {
                return Err(FaultSyntax::Twice(shown(name)));
            }
            seen.push(name);
            match name {
                "loss" => plan.loss_ppm = share("loss", value)?,
                "duplicate" => plan.duplicate_ppm = share("duplicate", value)?,
                "reorder" => plan.reorder_ppm = share("reorder", value)?,
                "corrupt" => plan.corrupt_ppm = share("corrupt", value)?,
                "span" => {
                    let span = value.parse().ok().filter(|span| (1..=MAX_SPAN).contains(span));
                    plan.reorder_span = span.ok_or_else(|| FaultSyntax::Span(shown(value)))?;
                }
                _ => return Err(FaultSyntax::Name(shown(part))),
            }
        }
        let all = [plan.loss_ppm, plan.duplicate_ppm, plan.reorder_ppm, plan.corrupt_ppm];
        if all.iter().sum::<u32>() > MILLION {
            return Err(FaultSyntax::TooMany);
        }
        Ok(plan)
    }
}

/// The text that is parsed, without faults of single frames; `none` without faults.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [
            ("loss", self.loss_ppm),
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
            ("corrupt", self.corrupt_ppm),
        ];
        let mut before = "";
        for (name, ppm) in shares.into_iter().filter(|&(_, ppm)| ppm > 0) {
            write!(f, "{before}{name}={}", f64::from(ppm) / f64::from(MILLION))?;
            before = ",";
            if name == "reorder" && self.reorder_span > 0 {
                write!(f, ",span={}", self.reorder_span)?;
            }
        }
        if before.is_empty() { f.write_str(NONE) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_parsed_as_it_was_written() {
        let plan = FaultPlan {
            loss_ppm: 1000,
            duplicate_ppm: 1,
            reorder_ppm: 50_000,
            reorder_span: 8,
            corrupt_ppm: 20,
            script: Vec::new(),
        };
        let text = "loss=0.001,duplicate=0.000001,reorder=0.05,span=8,corrupt=0.00002";
        assert_eq!(plan.to_string(), text);
        assert_eq!(text.parse(), Ok(plan));
        assert_eq!("loss=1e-3".parse(), Ok(FaultPlan::loss(1000)));
        assert_eq!(" loss=1, ".parse(), Ok(FaultPlan::loss(1_000_000)));
        assert_eq!("".parse(), Ok(FaultPlan::default()));
        assert_eq!("none".parse(), Ok(FaultPlan::default()));
        assert_eq!(FaultPlan::default().to_string(), "none");
    }

    #[test]
    fn errors_name_the_valid_values() {
        for (text, hint) in [
            ("loss", "loss=1e-3"),
            ("1e-3", "loss=1e-3"),
            ("delay=3", "there are loss"),
            ("loss=1e-7", "1e-6 to 1"),
            ("loss=1.5", "1e-6 to 1"),
            ("loss=-0.1", "1e-6 to 1"),
            ("loss=nan", "1e-6 to 1"),
            ("duplicate=inf", "duplicate"),
            ("loss=0.1,loss=0.2", "twice"),
            ("reorder=0.1,span=0", "1 to 4096"),
            ("reorder=0.1,span=9999", "1 to 4096"),
            ("loss=0.6,corrupt=0.6", "together"),
        ] {
            let error = text.parse::<FaultPlan>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
