//! Tables as text, and numbers in them.

use courser_kit::text::{WIDTH, pieces, wrap};
use courser_kit::units::{show_ns, show_per_second};

/// A caption and a table of at most [`WIDTH`] columns. Columns without values are omitted.
pub(crate) fn table(
    caption: &str,
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let columns: Vec<Column<'_>> = (0..header.len())
        .map(|at| Column::new(header[at], rows.iter().map(|row| row[at].as_str())))
        .filter(|column| column.cells.iter().any(|cell| !cell.is_empty()))
        .collect();
    let caption: Vec<String> = caption.lines().flat_map(|line| wrap(line, WIDTH)).collect();
    format!("{}\n{}", caption.join("\n"), layout(columns).join("\n") + "\n")
}

/// A column of a table.
struct Column<'a> {
    header: &'a str,
    cells: Vec<&'a str>,
    width: usize,
    /// Width of the longest word or number with its unit.
    least: usize,
}

impl<'a> Column<'a> {
    fn new(header: &'a str, cells: impl Iterator<Item = &'a str>) -> Self {
        let cells: Vec<&str> = cells.collect();
        let texts = || std::iter::once(&header).chain(&cells);
        let width = texts().map(|text| text.chars().count()).max().unwrap_or(0);
        let longest = |text: &&str| pieces(text).iter().map(|p| p.chars().count()).max();
        let least = texts().filter_map(longest).max().unwrap_or(0);
        Self { header, cells, width, least }
    }
}

/// The lines of a table. If it is too wide, the widest cells are wrapped; then the gaps between columns
/// shrink from two blanks to one.
fn layout(mut columns: Vec<Column<'_>>) -> Vec<String> {
    let total = |columns: &[Column<'_>], gap: usize| {
        let width: usize = columns.iter().map(|column| column.width).sum();
        width + gap * columns.len().saturating_sub(1)
    };
    let mut gap = 2;
    while total(&columns, gap) > WIDTH {
        let wide = columns.iter_mut().filter(|column| column.width > column.least);
        match wide.max_by_key(|column| column.width) {
            Some(column) => column.width -= 1,
            None if gap > 1 => gap -= 1,
            None => break,
        }
    }
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let line = |cell: &dyn Fn(&Column<'_>) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        cells.join(&" ".repeat(gap)).trim_end().to_owned()
    };
    let row = |text: &dyn Fn(&Column<'_>) -> String| -> Vec<String> {
        let wrapped = |column: &Column<'_>| wrap(&text(column), column.width);
        let height = columns.iter().map(|column| wrapped(column).len()).max().unwrap_or(0);
        let part = |column: &Column<'_>, at: usize| wrapped(column).get(at).cloned();
        let first = columns.first().map_or("", |column| column.header);
        let padded = |column: &Column<'_>, at: usize| {
            let (text, width) = (part(column, at).unwrap_or_default(), column.width);
            // The first column and texts are aligned left, numbers right.
            let left = column.header == first || column.header.is_empty();
            if left { format!("{text:width$}") } else { format!("{text:>width$}") }
        };
        (0..height).map(|at| line(&|column| padded(column, at))).collect()
    };
    let mut lines = row(&|column| column.header.to_owned());
    lines.push("─".repeat(total(&columns, gap)));
    lines.extend((0..rows).flat_map(|at| row(&|column| column.cells[at].to_owned())));
    lines
}

pub(crate) fn ns(ns: u64) -> String {
    show_ns(ns as f64)
}

pub(crate) fn bps(bps: u64) -> String {
    show_per_second(bps as f64, "bit/s")
}

/// A count with its noun: `1 sender`, `20 senders`.
pub(crate) fn counted(n: u32, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_wrapped_between_words_and_keeps_units() {
        let header = ["name", "", "a long header of many words", "empty", "time"];
        let note = "a note that is longer than all other cells together and ends here, at last";
        let row =
            ["x".repeat(20), note.to_owned(), "1".to_owned(), String::new(), "12.3 µs".to_owned()];
        let text = table("a caption", &header, [row.to_vec()]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.starts_with("a caption\n") && text.contains("12.3 µs"), "{text}");
        assert!(!text.contains("empty") && text.contains(&"x".repeat(20)), "{text}");
        let narrow = table("", &["a", "b"], [vec!["1".to_owned(), "22".to_owned()]]);
        assert_eq!(narrow, "\na   b\n─────\n1  22\n");
    }
}
