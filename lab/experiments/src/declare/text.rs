//! Tables as text, and numbers in them.

use courser_kit::table::Table;
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::{show_ns, show_per_second};

/// A caption and a table of at most [`WIDTH`] columns. Columns without values are omitted.
pub(crate) fn table(
    caption: &str,
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let is_shown = |at: &usize| rows.iter().any(|row| !row[*at].is_empty());
    let columns: Vec<usize> = (0..header.len()).filter(is_shown).collect();
    let mut table = Table::ruled(columns.iter().map(|&at| header[at]));
    for row in &rows {
        table.add_row(columns.iter().map(|&at| row[at].as_str()));
    }
    // The first column and texts are aligned left, numbers right.
    let is_right = |at: &usize| *at > 0 && !header[columns[*at]].is_empty();
    table.align_right((0..columns.len()).filter(is_right));
    let caption: Vec<String> = caption.lines().flat_map(|line| wrap(line, WIDTH)).collect();
    format!("{}\n{table}\n", caption.join("\n"))
}

pub(crate) fn ns(ns: u64) -> String {
    show_ns(ns as f64)
}

/// A share in per cent: `45.6 %`.
pub(crate) fn percent(share: f64) -> String {
    let digits = if share > 0.0 && share < 0.001 { 3 } else { 1 };
    format!("{:.digits$} %", share * 100.0)
}

/// A probability: `0`, `1e-3`, `5e-2`.
pub(crate) fn chance(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{share:e}") }
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
