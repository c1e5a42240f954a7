//! Tables of a terminal.

use comfy_table::{Row, Table, TableComponent, presets};

/// An empty table without borders, with a line below its header.
pub fn ruled(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for line in [
        TableComponent::HeaderLines,
        TableComponent::LeftHeaderIntersection,
        TableComponent::MiddleHeaderIntersections,
        TableComponent::RightHeaderIntersection,
    ] {
        table.set_style(line, '─');
    }
    table.set_header(header);
    table
}
