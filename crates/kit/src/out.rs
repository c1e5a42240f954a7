//! Text output; with the feature `color` in colours, on terminals only.

use std::io::{IsTerminal, Write};

use anstyle::Style;

use crate::text::labelled;

/// Headings.
pub const BOLD: Style = colors::BOLD;

#[cfg(feature = "color")]
mod colors {
    use anstyle::{AnsiColor, Style};

    pub(super) const BOLD: Style = Style::new().bold();
    pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
    pub(super) const ERROR: Style = AnsiColor::Red.on_default().bold();

    pub(super) use anstream::{stderr, stdout};

    pub(super) type Out = anstream::AutoStream<std::io::Stdout>;
    pub(super) type Err = anstream::AutoStream<std::io::Stderr>;
}

#[cfg(not(feature = "color"))]
mod colors {
    use anstyle::Style;

    pub(super) const BOLD: Style = Style::new();
    pub(super) const WARNING: Style = Style::new();
    pub(super) const ERROR: Style = Style::new();

    pub(super) use std::io::{stderr, stdout};

    pub(super) type Out = std::io::Stdout;
    pub(super) type Err = std::io::Stderr;
}

/// Standard output without colours for files, pipes, `TERM=dumb` and `NO_COLOR`.
pub type Out = colors::Out;

/// Standard output.
pub fn stdout() -> Out {
    colors::stdout()
}

/// Standard error, with the same rules for colours.
pub fn stderr() -> colors::Err {
    colors::stderr()
}

/// Prints a warning to standard error.
pub fn warn(text: &str) {
    message(colors::WARNING, "warning:", text);
}

/// Prints the error of a failed command to standard error.
pub fn error(text: &str) {
    message(colors::ERROR, "error:", text);
}

fn message(style: Style, label: &str, text: &str) {
    let is_screen = std::io::stderr().is_terminal();
    // A closed standard error cannot be reported.
    let _ = writeln!(stderr(), "{style}{label}{style:#}{}", body(label, text, is_screen));
}

/// The text after a label: in lines that fit a terminal, and in one line for files and pipes, so that
/// scripts find it.
fn body(label: &str, text: &str, is_screen: bool) -> String {
    if !is_screen {
        return format!(" {text}");
    }
    labelled(&format!("{label} "), text)[label.len()..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::WIDTH;

    #[test]
    fn messages_fit_a_terminal_and_have_one_line_elsewhere() {
        let text =
            format!("{}; write one like udp://db1:31850", "`db1` is not an address, ".repeat(9));
        let screen = format!("error:{}", body("error:", &text, true));
        assert!(screen.lines().all(|line| line.chars().count() <= WIDTH), "{screen}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&screen), words(&format!("error: {text}")));
        assert_eq!(body("error:", &text, false), format!(" {text}"));
    }
}
