//! Text on standard output, with parts that are redrawn in place on a terminal.

use std::io::{IsTerminal, Write};

use courser_kit::Failure;
use courser_kit::out::{self, BOLD, Out};
use courser_kit::table::Table;
use courser_kit::text::{WIDTH, wrap};

/// Before each line of a table.
const INDENT: &str = "  ";

/// Standard output, or nothing when it has the results as JSON.
pub(super) struct Screen {
    out: Option<Out>,
    /// Lines are redrawn in place.
    is_live: bool,
    /// Lines that the next drawing replaces.
    drawn: usize,
}

impl Screen {
    pub(super) fn new(is_silent: bool) -> Self {
        let out = (!is_silent).then(out::stdout);
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_live = out.is_some() && std::io::stdout().is_terminal() && !is_dumb;
        Self { out, is_live, drawn: 0 }
    }

    /// True if [`Screen::draw`] shows something.
    pub(super) fn is_live(&self) -> bool {
        self.is_live
    }

    pub(super) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.erase()?;
        let Some(out) = &mut self.out else { return Ok(()) };
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }

    pub(super) fn heading(&mut self, text: &str) -> Result<(), Failure> {
        self.line(&format!("{BOLD}{text}{BOLD:#}"))
    }

    /// Writes a paragraph in lines that fit a terminal.
    pub(super) fn wrapped(&mut self, text: &str) -> Result<(), Failure> {
        wrap(text, WIDTH).iter().try_for_each(|line| self.line(line))
    }

    /// Writes a table.
    pub(super) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        table.lines().iter().try_for_each(|line| self.line(&format!("{INDENT}{line}")))
    }

    /// Draws a table that the next text replaces. Nothing without a terminal.
    pub(super) fn draw(&mut self, table: &Table) -> Result<(), Failure> {
        if !self.is_live {
            return Ok(());
        }
        self.table(table)?;
        self.drawn = table.lines().len();
        Ok(())
    }

    /// Removes what was drawn.
    fn erase(&mut self) -> Result<(), Failure> {
        let lines = std::mem::take(&mut self.drawn);
        if lines > 0 {
            // Cursor up, erase to the end of the screen; `NO_COLOR` does not concern this.
            write!(std::io::stdout(), "\x1b[{lines}A\x1b[J")?;
        }
        Ok(())
    }
}

/// An empty table of the screen.
pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::ruled(header);
    table.set_width(WIDTH - INDENT.len());
    table
}

/// A table as the screen shows it.
#[cfg(test)]
pub(super) fn text(table: &Table) -> String {
    table.lines().iter().map(|line| format!("{INDENT}{line}\n")).collect()
}
