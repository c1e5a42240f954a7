//! The lines that a user writes for the service with each library: the table of README.md.

use std::path::Path;

/// Sources by library. Generated code does not count.
const SOURCES: &[(&str, &[&str])] = &[
    ("courser", &["src/kv/courser.rs"]),
    ("tonic", &["src/kv/tonic.rs", "proto/kv.proto", "build/tonic.rs"]),
    ("tarpc", &["src/kv/tarpc.rs"]),
];

/// Sources of the service as it is in production.
const PRODUCTION: &[(&str, &[&str])] = &[
    ("courser", &["src/kv/production/courser.rs"]),
    ("tonic", &["src/kv/production/tonic.rs", "proto/kv.proto", "build/tonic.rs"]),
    ("tarpc", &["src/kv/production/tarpc.rs"]),
];

/// Lines of code: all but blank lines and comments.
fn lines(path: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    text.lines().filter(code).count()
}

#[test]
fn the_readme_has_the_lines_of_each_program() {
    let readme = include_str!("../../README.md");
    for (name, sources) in SOURCES.iter().chain(PRODUCTION) {
        let counts: Vec<_> = sources.iter().map(|path| (*path, lines(path))).collect();
        let total: usize = counts.iter().map(|(_, lines)| lines).sum();
        let parts: Vec<_> =
            counts.iter().map(|(path, lines)| format!("`{path}` {lines}")).collect();
        let row = format!("| {name} | {total} | {} |", parts.join(", "));
        println!("{row}");
        assert!(readme.contains(&row), "README.md lacks this row; put it there:\n{row}");
    }
}

#[test]
fn in_production_courser_needs_at_most_a_fifth_more_lines_than_tonic_and_fewer_than_tarpc() {
    let [courser, tonic, tarpc] = ["courser", "tonic", "tarpc"].map(|wanted| {
        let (_, sources) = PRODUCTION.iter().find(|(name, _)| *name == wanted).expect("sources");
        sources.iter().map(|path| lines(path)).sum::<usize>()
    });
    assert!(5 * courser <= 6 * tonic, "{courser} lines with Courser, {tonic} with tonic");
    assert!(courser < tarpc, "{courser} lines with Courser, {tarpc} with tarpc");
}
