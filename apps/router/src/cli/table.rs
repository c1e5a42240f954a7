//! Tables of a terminal of 80 columns.

use comfy_table::{CellAlignment, ContentArrangement, Row, Table, TableComponent, presets};

/// Columns of a terminal.
pub(in crate::cli) const COLUMNS: u16 = 80;

/// An empty table without borders, with a line below its header. Cells that do not fit are wrapped,
/// so that its lines have at most this many columns.
pub(in crate::cli) fn ruled(header: impl Into<Row>, columns: u16) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    table.set_header(header);
    set_gap(&mut table, 2);
    table
}

/// Sets the blanks between columns, 1 or more.
pub(in crate::cli) fn set_gap(table: &mut Table, blanks: u16) {
    let last = table.column_count().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at < last { blanks - 1 } else { 0 }));
    }
}

/// Aligns numbers of columns.
pub(in crate::cli) fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in table.column_iter_mut().take(columns.end).skip(columns.start) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// The lines of a table, without the blanks at their ends.
pub(in crate::cli) fn lines(table: &Table) -> impl Iterator<Item = String> {
    table.lines().map(|line| line.trim_end().to_owned())
}

/// Asserts that lines fit a terminal.
#[cfg(test)]
pub(in crate::cli) fn assert_fits(text: &str) {
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= usize::from(COLUMNS), "{columns} columns: {line}\n{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_any_content_fit_their_width() {
        for columns in [1, 2, 9, 16] {
            let mut table = ruled((0..columns).map(|n| format!("a long header {n}")), COLUMNS);
            table.add_row((0..columns).map(|_| u64::MAX.to_string()));
            table.add_row((0..columns).map(|_| "several words in a cell, and further ones"));
            let text: Vec<_> = lines(&table).collect();
            assert_fits(&text.join("\n"));
        }
    }
}
