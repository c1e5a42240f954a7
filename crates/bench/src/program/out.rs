//! Text output; colours on terminals only.

use std::io::Write;

use anstyle::{AnsiColor, Style};

/// Headings.
pub const BOLD: Style = Style::new().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Standard output without colours for files, pipes, `TERM=dumb` and `NO_COLOR`.
pub type Out = anstream::AutoStream<std::io::Stdout>;

/// Standard output.
pub fn stdout() -> Out {
    anstream::stdout()
}

/// Standard error, with the same rules for colours.
pub fn stderr() -> anstream::AutoStream<std::io::Stderr> {
    anstream::stderr()
}

/// Prints a warning to standard error.
pub fn warn(text: &str) {
    // A closed standard error cannot be reported.
    let _ = writeln!(anstream::stderr(), "{WARNING}warning:{WARNING:#} {text}");
}

/// Prints the error of a failed command to standard error.
pub fn error(text: &str) {
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {text}");
}
