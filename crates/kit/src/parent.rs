//! Communication with the parent process, which reads lines from standard output and ends this process
//! by closing its standard input.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes a line to the parent process; errors are ignored because it may have ended.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A flag that a thread sets at the end of standard input.
///
/// # Errors
/// The thread could not be started.
pub fn stop_with_stdin() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let watch = move || {
        let mut byte = [0];
        while !matches!(io::stdin().read(&mut byte), Ok(0) | Err(_)) {}
        flag.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("stdin".to_owned()).spawn(watch)?;
    Ok(stop)
}
