//! A progress bar, on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::fail::Failure;
use crate::interrupt;

/// A bar of 1,000 steps, shown only if standard error is a terminal. A signal removes it and ends the
/// process. It is drawn between windows, because a drawing thread would disturb them.
///
/// # Errors
/// Signals cannot be handled.
pub fn bar() -> Result<ProgressBar, Failure> {
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("  {prefix:<10} [{bar:32}] {percent:>3} %  {msg}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    let shown = bar.clone();
    interrupt::end_cleanly(move || shown.finish_and_clear())?;
    Ok(bar)
}
