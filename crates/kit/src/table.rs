//! Tables of a terminal.

use std::fmt;

use crate::text::{WIDTH, pieces, wrap};

/// A table without borders.
///
/// No line is longer than the table's width. Columns move together if that suffices; else cells are
/// wrapped, between words if possible. Only a table of more columns than half its width is wider.
#[derive(Clone, Debug)]
pub struct Table {
    lines: Vec<Line>,
    /// Columns of numbers.
    right: Vec<usize>,
    /// Blanks between columns.
    gap: usize,
    width: usize,
}

#[derive(Clone, Debug)]
enum Line {
    Cells(Vec<String>),
    Rule,
}

impl Table {
    /// A table with a header, of at most [`WIDTH`] characters, and two blanks between columns.
    pub fn plain(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self { lines: Vec::new(), right: Vec::new(), gap: 2, width: WIDTH };
        table.add_row(header);
        table
    }

    /// A table with a horizontal line below its header.
    pub fn ruled(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self::plain(header);
        table.add_rule();
        table
    }

    /// Sets the length of its lines at most, in characters.
    pub fn set_width(&mut self, width: usize) {
        self.width = width;
    }

    /// Sets the blanks between columns, 1 or more.
    pub fn set_gap(&mut self, blanks: usize) {
        self.gap = blanks;
    }

    /// Aligns columns to the right, as numbers are; the others are aligned to the left.
    pub fn align_right(&mut self, columns: impl IntoIterator<Item = usize>) {
        self.right.extend(columns);
    }

    /// Adds a row. A cell may have several lines.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.lines.push(Line::Cells(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a horizontal line.
    pub fn add_rule(&mut self) {
        self.lines.push(Line::Rule);
    }

    /// The lines, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let (widths, gap) = self.layout();
        let row = |cells: &[String]| {
            let wrapped = cells.iter().zip(&widths).map(|(cell, &width)| fit(cell, width));
            let cells: Vec<Vec<String>> = wrapped.collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            let line = |at: usize| {
                let padded =
                    cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                        let text = cell.get(at).map_or("", String::as_str);
                        let is_right = self.right.contains(&column);
                        if is_right { format!("{text:>width$}") } else { format!("{text:width$}") }
                    });
                let line = padded.collect::<Vec<_>>().join(&" ".repeat(gap));
                line.trim_end().to_owned()
            };
            (0..height).map(line).collect()
        };
        let rule = "─".repeat(total(&widths, gap));
        let lines = self.lines.iter().flat_map(|line| match line {
            Line::Cells(cells) => row(cells),
            Line::Rule => vec![rule.clone()],
        });
        lines.collect()
    }

    /// The widths of the columns, and the gap between them.
    fn layout(&self) -> (Vec<usize>, usize) {
        let (mut widths, mut least) = (Vec::new(), Vec::new());
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            widths.resize(widths.len().max(cells.len()), 0);
            least.resize(widths.len(), 0);
            for (cell, (width, least)) in cells.iter().zip(widths.iter_mut().zip(&mut least)) {
                *width = longest(cell.lines()).max(*width);
                // The longest word, or number with its unit.
                let words = cell.lines().flat_map(pieces).collect::<Vec<_>>();
                *least = longest(words.iter().map(String::as_str)).max(*least);
            }
        }
        let (one, whole) = (vec![1; widths.len()], widths.clone());
        let mut gap = self.gap;
        if total(&widths, 1) <= self.width {
            while total(&widths, gap) > self.width {
                gap -= 1;
            }
        }
        while total(&widths, gap) > self.width {
            if let Some(width) = widest(&mut widths, &least) {
                *width -= 1;
            } else if gap > 1 {
                gap -= 1;
            } else if let Some(width) = widest(&mut widths, &one) {
                *width -= 1;
            } else {
                break;
            }
        }
        if widths != whole {
            self.widen(&mut widths, &whole, gap);
        }
        (widths, gap)
    }

    /// Gives the blanks that remain beside wrapped cells to the first columns that need no wrapping
    /// with them.
    fn widen(&self, widths: &mut [usize], whole: &[usize], gap: usize) {
        let mut used = vec![0; widths.len()];
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            for (cell, (used, &width)) in cells.iter().zip(used.iter_mut().zip(&*widths)) {
                *used = longest(fit(cell, width).iter().map(String::as_str)).max(*used);
            }
        }
        let mut free = self.width.saturating_sub(total(&used, gap));
        let mut is_wider = false;
        for ((used, &width), &whole) in used.iter_mut().zip(&*widths).zip(whole) {
            let more = whole - *used;
            if width < whole && more <= free {
                (*used, free, is_wider) = (whole, free - more, true);
            }
        }
        if is_wider {
            widths.copy_from_slice(&used);
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

/// Columns together with the gaps between them.
fn total(widths: &[usize], gap: usize) -> usize {
    widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)
}

/// The widest of the columns that are wider than their least width.
fn widest<'a>(widths: &'a mut [usize], least: &[usize]) -> Option<&'a mut usize> {
    let above = widths.iter_mut().zip(least).filter(|(width, least)| **width > **least);
    above.map(|(width, _)| width).max_by_key(|width| **width)
}

fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

/// A cell in lines of at most `width` characters.
fn fit(cell: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in cell.lines() {
        if line.chars().count() <= width {
            lines.push(line.to_owned());
            continue;
        }
        for part in wrap(line, width) {
            let part: Vec<char> = part.chars().collect();
            lines.extend(part.chunks(width.max(1)).map(|chars| chars.iter().collect::<String>()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_are_aligned_right() {
        let mut table = Table::ruled(["name", "n"]);
        table.add_row(["a", "1"]);
        table.add_row(["", "22"]);
        table.align_right(1..2);
        assert_eq!(table.to_string(), "name   n\n────────\na      1\n      22");
        assert_eq!(Table::plain(["a", "b"]).to_string(), "a  b");
    }

    #[test]
    fn cells_of_several_lines_keep_them_and_their_indentation() {
        let mut table = Table::plain(["a\nb", "c"]);
        table.set_gap(1);
        table.add_row(["x\n  y  z", "1\n2\n3"]);
        table.add_rule();
        assert_eq!(
            table.lines(),
            ["a      c", "b", "x      1", "  y  z 2", "       3", "────────"]
        );
    }

    #[test]
    fn wide_cells_are_wrapped_between_words_and_not_before_units() {
        let mut table = Table::plain(["name", "a long header of many words", "time"]);
        table.add_row(["x".repeat(20), "a note ".repeat(11), "12.3 µs".to_owned()]);
        let lines = table.lines();
        assert!(lines.len() > 2 && longest(lines.iter().map(String::as_str)) == WIDTH, "{table}");
        assert!(lines[1].starts_with(&format!("{}  a note", "x".repeat(20))), "{table}");
        assert!(lines[1].ends_with("  12.3 µs"), "{table}");
    }

    #[test]
    fn columns_move_together_before_cells_are_wrapped() {
        let mut table = Table::plain(["some words", "some words", "some words"]);
        for (width, line) in [
            (34, "some words  some words  some words"),
            (32, "some words some words some words"),
            (31, "some words  some words  some"),
        ] {
            table.set_width(width);
            assert_eq!(table.lines()[0], line);
        }
    }

    #[test]
    fn tables_of_any_content_fit_their_width() {
        for columns in [1, 2, 9, 16, 40] {
            let mut table = Table::ruled((0..columns).map(|n| format!("a long header {n}")));
            table.add_row((0..columns).map(|_| u64::MAX.to_string()));
            table.add_row((0..columns).map(|_| "several words in a cell, and further ones"));
            let lines = table.lines();
            assert!(longest(lines.iter().map(String::as_str)) <= WIDTH, "{table}");
        }
    }
}
