//! Signals such as Ctrl-C. A command with output at its end handles them ([`Interrupt::stop`]); other
//! commands end immediately and leave no partial files ([`end_cleanly`]).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courser::EndpointHandle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;

/// Held while a file is between its temporary and its final name.
static WRITING: Mutex<()> = Mutex::new(());

/// The handlers of [`end_cleanly`], until an [`Interrupt`] takes over.
static ENDING: Mutex<Vec<Handle>> = Mutex::new(Vec::new());

/// Signals handled by a thread instead of ending the process.
pub struct Interrupt {
    interrupted: Arc<AtomicBool>,
    handle: Handle,
}

impl Interrupt {
    /// Handles signals: the first one sets [`Interrupt::is_set`] and stops the event loops of
    /// `endpoints`; the second one ends the process. Clean-ups of [`end_cleanly`] do not run any more.
    ///
    /// # Errors
    /// A signal handler or the thread cannot be set up.
    pub fn stop(endpoints: Vec<EndpointHandle>) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (handle, interrupted) = (signals.handle(), Arc::new(AtomicBool::new(false)));
        let flag = interrupted.clone();
        let thread = std::thread::Builder::new().name("courser-signals".to_owned());
        thread.spawn(move || {
            for signal in signals.forever() {
                if flag.swap(true, Ordering::AcqRel) {
                    end_as_by(signal);
                }
                endpoints.iter().for_each(EndpointHandle::stop);
            }
        })?;
        lock(&ENDING).drain(..).for_each(|ending| ending.close());
        Ok(Self { interrupted, handle })
    }

    /// True after a signal.
    pub fn is_set(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Ends the process at a signal after calling `clean_up`, but not while a file is written, until an
/// [`Interrupt`] handles signals. Child processes end with their parent.
///
/// # Errors
/// A signal handler or the thread cannot be set up.
pub fn end_cleanly(clean_up: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    lock(&ENDING).push(signals.handle());
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

/// Delays the end of the process by a signal while a file is written.
pub fn writing() -> MutexGuard<'static, ()> {
    lock(&WRITING)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process by the default action of the signal, so that the parent gets its number.
fn end_as_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
}
