//! Options of the loss experiments. Defaults are those of their `Settings`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use courser::Recovery;
use courser_sim::scenario::loss;

use crate::units;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn all_nanos(times: &[Duration]) -> Vec<u64> {
    times.iter().copied().map(nanos).collect()
}

/// Reads `5%:48us`.
fn reorder(text: &str) -> Result<loss::Reorder, String> {
    let (chance, time) =
        text.split_once(':').ok_or("write a chance and the longest delay: 5%:48us")?;
    Ok(loss::Reorder { ppm: units::chance(chance)?, max_ns: nanos(units::nonzero_time(time)?) })
}

/// Recovery times of a sweep.
const SWEEP: [Duration; 8] = [
    Duration::from_micros(20),
    Duration::from_micros(30),
    Duration::from_micros(50),
    Duration::from_micros(75),
    Duration::from_micros(100),
    Duration::from_micros(150),
    Duration::from_micros(250),
    Duration::from_micros(500),
];

#[derive(Debug, Args)]
#[command(after_help = "\
Two hosts at one switch of MELO's network: 40 Gbit/s, packets of 1,024 data bytes, a round trip
of 16 us, credits of three times what fills it. The switch loses each packet that crosses it with
the given chance, data one way and credit returns the other. CPUs cost nothing.

  go-back-n   what comes out of order is dropped; after the recovery time all is sent again
  melo        what is lost is named by the receiver and sent once more; what is lost twice waits
              for the recovery time
  default     a packet is lost when one that was sent a reorder window later was answered

A lost packet has used the link: nobody is above 1 - loss of what there is without. The paper does
not say its recovery time; --fit finds the one that gives go-back-N the paper's 45.6 % at 1e-3,
and shows what then comes out at 1e-2. It is the default of --rto.

Examples:
  courser sim loss                                all schemes, 0 to 5 %
  courser sim loss --svg loss.svg --json loss.json
  courser sim loss --fit                          the recovery time that the paper leaves out
  courser sim loss --rto-sweep                    MELO at 1 % against its recovery time
  courser sim loss --reorder 0.1%:48us,1%:48us,5%:48us,10%:48us")]
pub(in crate::sim) struct LossArgs {
    /// Decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Schemes, with commas: go-back-n, melo, default; without it all, and melo for --rto-sweep
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scheme: Option<Vec<Recovery>>,
    /// Chances that the switch loses a packet, with commas: 1e-3 or 0.1%; without it 0 to 5e-2, 0
    /// with --reorder, and 1e-2 for --rto-sweep
    #[arg(long, value_name = "CHANCE,..", value_delimiter = ',', value_parser = units::chance)]
    loss: Option<Vec<u32>>,
    /// Chance and longest delay of packets that come late, with commas: 5%:48us
    #[arg(long, value_name = "CHANCE:TIME,..", value_delimiter = ',', value_parser = reorder)]
    reorder: Vec<loss::Reorder>,
    /// Recovery time of go-back-n and melo; default: what --fit has found
    #[arg(long, value_name = "TIME", value_parser = units::nonzero_time, conflicts_with = "rto_sweep")]
    rto: Option<Duration>,
    /// Goodput against the recovery time; times with commas, default 20 us to 500 us
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', num_args = 0..=1, require_equals = true, value_parser = units::nonzero_time)]
    rto_sweep: Option<Vec<Duration>>,
    /// Search the recovery time of the paper's go-back-N
    #[arg(long, conflicts_with_all = ["scheme", "loss", "reorder", "rto", "rto_sweep", "svg"])]
    pub(super) fit: bool,
    /// Round trip of the idle network
    #[arg(long, value_name = "TIME", default_value = "16us", value_parser = units::nonzero_time)]
    rtt: Duration,
    /// Credits, in bandwidth-delay products
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    window: u32,
    /// Bytes of a request, up to 128 MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::bytes)]
    request: u64,
    /// Requests under way, each in a slot of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    outstanding: u32,
    /// Virtual time before anything is counted; default 20 ms, with --reorder 100 ms
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    warm_up: Option<Duration>,
    /// Virtual time in which it is counted
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::nonzero_time)]
    time: Duration,
    /// Draw goodput against loss (or recovery time, or reordering) as SVG
    #[arg(long, value_name = "PATH")]
    pub(super) svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output with -
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
}

impl LossArgs {
    pub(super) fn settings(&self) -> loss::Settings {
        let defaults = loss::Settings::default();
        let sweep = self.rto_sweep.is_some();
        let schemes = if sweep { vec![Recovery::Melo] } else { defaults.schemes };
        let loss_ppm = match (sweep, self.reorder.is_empty()) {
            (true, _) => vec![10_000],
            (false, true) => defaults.loss_ppm,
            (false, false) => vec![0],
        };
        let rto_ns = match (&self.rto_sweep, self.rto) {
            (Some(times), _) if times.is_empty() => all_nanos(&SWEEP),
            (Some(times), _) => all_nanos(times),
            (None, Some(rto)) => vec![nanos(rto)],
            (None, None) => defaults.rto_ns,
        };
        loss::Settings {
            seed: self.seed,
            schemes: self.scheme.clone().unwrap_or(schemes),
            loss_ppm: self.loss.clone().unwrap_or(loss_ppm),
            reorder: self.reorder.clone(),
            rto_ns,
            rtt_ns: nanos(self.rtt),
            window_permille: self.window * 1_000,
            request_bytes: usize::try_from(self.request).unwrap_or(usize::MAX),
            outstanding: self.outstanding,
            warm_up_ns: self.warm_up.map(nanos),
            time_ns: nanos(self.time),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct LossLine {
        #[command(flatten)]
        args: LossArgs,
    }

    fn loss_args(line: &str) -> loss::Settings {
        LossLine::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}")).args.settings()
    }

    #[test]
    fn defaults_are_those_of_the_experiments() {
        assert_eq!(loss_args("loss"), loss::Settings::default());
    }

    #[test]
    fn options_reach_the_experiments() {
        let line = "loss --scheme melo,default --loss 0,0.1%,1e-2 --rto 100us --window 2 \
                    --request 8MiB --outstanding 2";
        let s = loss_args(line);
        assert_eq!(s.schemes, [Recovery::Melo, Recovery::Selective]);
        assert_eq!((&s.loss_ppm[..], &s.rto_ns[..]), (&[0, 1_000, 10_000][..], &[100_000][..]));
        assert_eq!((s.window_permille, s.request_bytes, s.outstanding), (2_000, 8 << 20, 2));
        let s = loss_args("loss --reorder 5%:48us,0.1%:1us");
        let (late, rare) = (s.reorder[0], s.reorder[1]);
        assert_eq!((late.ppm, late.max_ns, rare.ppm, rare.max_ns), (50_000, 48_000, 1_000, 1_000));
        assert_eq!(s.loss_ppm, [0], "reordering alone");
    }

    #[test]
    fn a_sweep_is_melo_s_unless_it_is_said_otherwise() {
        let s = loss_args("loss --rto-sweep");
        assert_eq!((s.schemes, s.loss_ppm), (vec![Recovery::Melo], vec![10_000]));
        assert_eq!(s.rto_ns.len(), SWEEP.len());
        let s = loss_args("loss --rto-sweep=1ms,2ms --scheme go-back-n --loss 1e-3");
        assert_eq!((s.schemes, s.rto_ns), (vec![Recovery::GoBackN], vec![1_000_000, 2_000_000]));
    }
}
