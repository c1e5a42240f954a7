//! Names of controls and CPUs as options of loss recovery.

use clap::ValueEnum;
use courser::Control;

use crate::scenario::Cpu;

/// Model of CPU costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuName {
    /// No CPU costs: only the network takes time
    None,
    /// Costs of the paper: 44 ns for each packet
    Erpc,
    /// Estimated costs of Courser: about 140 ns for each packet
    Courser,
    /// Measured costs of Courser: about 40 ns for each packet and frame
    Measured,
}

impl From<CpuName> for Cpu {
    fn from(name: CpuName) -> Cpu {
        match name {
            CpuName::None => Cpu::None,
            CpuName::Erpc => Cpu::Erpc,
            CpuName::Courser => Cpu::Courser,
            CpuName::Measured => Cpu::Measured,
        }
    }
}

/// Congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ControlName {
    /// Credits alone
    None,
    /// As C++ eRPC ships it, not patched
    Timely,
    /// With the correction of "ECN or Delay"
    TimelyPatched,
    /// A rate from congestion marks
    Dcqcn,
    /// A window from the delay
    Swift,
    /// Courser's own: the receiver's budget and the sender's window
    Default,
}

impl From<ControlName> for Control {
    fn from(name: ControlName) -> Control {
        match name {
            ControlName::None => Control::None,
            ControlName::Timely => Control::Timely,
            ControlName::TimelyPatched => Control::TimelyPatched,
            ControlName::Dcqcn => Control::Dcqcn,
            ControlName::Swift => Control::Swift,
            ControlName::Default => Control::TwoWindow,
        }
    }
}
