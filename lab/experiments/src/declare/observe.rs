//! `--pcapng` and `--trace` of a simulation.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::Args;
use courser_sim::Tap;
use courser_sim::fabric::Topology;
use courser_sim::observe::{
    CaptureSettings, Links, Names, Observer, Settings, Sink, TraceSettings,
};

use courser_kit::Failure;

#[derive(Debug, Args)]
pub(crate) struct ObserveArgs {
    /// Write the packets of every link to a pcapng file; large for long runs
    #[arg(long, value_name = "PATH")]
    pcapng: Option<PathBuf>,
    /// Write one line for every packet and hop to a file; large for long runs
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
}

impl ObserveArgs {
    /// Refuses the options for an experiment of several runs.
    pub(crate) fn refuse(&self) -> Result<(), Failure> {
        if self.pcapng.is_none() && self.trace.is_none() {
            return Ok(());
        }
        let text = "--pcapng and --trace need a single run: one control, one number of senders";
        Err(Failure::Usage(format!("{text}, one seed")))
    }
}

/// The observer of a run; `None` without `--pcapng` and `--trace`.
pub(crate) struct Observed(Option<Rc<RefCell<Observer>>>);

fn sink(path: &Path) -> Result<Sink, Failure> {
    Sink::file(path).map_err(|error| Failure::writing(path, &error))
}

impl Observed {
    /// Opens the files.
    pub(crate) fn begin(args: &ObserveArgs, topology: &Topology) -> Result<Self, Failure> {
        if args.pcapng.is_none() && args.trace.is_none() {
            return Ok(Observed(None));
        }
        let mut settings = Settings::default();
        if let Some(path) = &args.trace {
            let to = Some(sink(path)?);
            settings.trace = Some(TraceSettings { to, ..TraceSettings::default() });
        }
        if let Some(path) = &args.pcapng {
            settings.captures.push(CaptureSettings { to: sink(path)?, links: Links::All });
        }
        let observer = Observer::new(settings, Names::of(topology));
        Ok(Observed(Some(Rc::new(RefCell::new(observer)))))
    }

    /// The tap of the simulated world.
    pub(crate) fn tap(&self) -> Option<Box<dyn Tap>> {
        self.0.clone().map(|shared| Box::new(shared) as Box<dyn Tap>)
    }

    /// Completes the files; the world must have been dropped.
    pub(crate) fn end(self) -> Result<(), Failure> {
        let Some(observer) = self.0.and_then(Rc::into_inner) else { return Ok(()) };
        match observer.into_inner().into_report(0).errors.into_iter().next() {
            None => Ok(()),
            Some(error) => Err(Failure::Runtime(error)),
        }
    }
}
