//! The guide's table and the tests' are the same.

use super::table::{Codec, rows};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/changing-a-service.md");

/// The cells of the lines of the guide's table, without its head.
fn lines(guide: &str) -> Vec<Vec<&str>> {
    let lines = guide.lines().skip_while(|line| !line.starts_with("| change |"));
    let table = lines.skip(2).take_while(|line| line.starts_with('|'));
    table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_guide_has_a_line_for_each_row_and_says_what_the_tests_expect() {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let lines = lines(&guide);
    for (row, line) in rows().iter().zip(&lines) {
        let [change, cells @ ..] = &line[..] else { panic!("{line:?}") };
        assert_eq!(*change, row.change);
        assert_eq!(cells.len(), Codec::ALL.len(), "{change}");
        for (codec, cell) in Codec::ALL.into_iter().zip(cells) {
            let expected = row.text(codec);
            let rest = cell.strip_prefix(expected);
            let is_said =
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([';', ':', ',', ' ']));
            assert!(
                is_said,
                "{change}, {codec:?}: {cell:?} in the guide, {expected:?} in the tests"
            );
        }
    }
    assert_eq!(lines.len(), rows().len());
}
