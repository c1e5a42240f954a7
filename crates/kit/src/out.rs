//! Text output; colours on terminals only.

use std::io::{IsTerminal, Write};

use anstyle::{AnsiColor, Style};

use crate::text::labelled;

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
    message(WARNING, "warning:", text);
}

/// Prints the error of a failed command to standard error.
pub fn error(text: &str) {
    message(ERROR, "error:", text);
}

fn message(style: Style, label: &str, text: &str) {
    let is_screen = std::io::stderr().is_terminal();
    // A closed standard error cannot be reported.
    let _ = writeln!(anstream::stderr(), "{style}{label}{style:#}{}", body(label, text, is_screen));
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
