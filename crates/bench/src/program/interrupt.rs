//! Ctrl-C and its like. Two ways: a command that has something to say at its end asks to be told
//! ([`Interrupt::tell`]); any other ends at once, with nothing left behind.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser::EndpointHandle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;

/// Held while a file is between its temporary and its final name.
static WRITING: Mutex<()> = Mutex::new(());

/// Signals, taken by a thread of their own instead of ending the process.
pub struct Interrupt {
    told: Arc<AtomicBool>,
    handle: Handle,
}

impl Interrupt {
    /// From now on the first signal sets [`Interrupt::is_set`] and stops the event loops of
    /// `endpoints`; the second ends the process at once.
    ///
    /// # Errors
    /// The system refused.
    pub fn tell(endpoints: Vec<EndpointHandle>) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (handle, told) = (signals.handle(), Arc::new(AtomicBool::new(false)));
        let flag = told.clone();
        let thread = std::thread::Builder::new().name("courser-signals".to_owned());
        thread.spawn(move || {
            for signal in signals.forever() {
                if flag.swap(true, Ordering::AcqRel) {
                    end_as_by(signal);
                }
                endpoints.iter().for_each(EndpointHandle::stop);
            }
        })?;
        Ok(Self { told, handle })
    }

    /// True once a signal came.
    pub fn is_set(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Ends the process at a signal, but not while a file is being written, and after `clean_up`.
/// Children of the process are bound to its life and end with it.
///
/// # Errors
/// The system refused.
pub fn end_cleanly(clean_up: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let thread = std::thread::Builder::new().name("courser-signals".to_owned());
    thread.spawn(move || {
        if let Some(signal) = signals.forever().next() {
            clean_up();
            let _writing = writing();
            end_as_by(signal);
        }
    })?;
    Ok(())
}

/// Keeps signals from ending the process while a file is half written.
pub fn writing() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process the way the signal does by itself, so that a shell or a script sees it.
fn end_as_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
}
