//! Tests of the README: its length and order, its links, and the facts that other files decide.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Most words: the README is read by people who decide within minutes.
const MOST_WORDS: usize = 950;

/// Its sections, in this order.
const SECTIONS: [&str; 5] =
    ["The first program", "Two commands", "What it is not for", "Measured", "Read on"];

/// The repository's root and the README; `None` in a package without documents.
fn readme() -> Option<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_repository = root.join("docs/performance.md").is_file();
    let text = is_repository.then(|| read(&root, "README.md"));
    if text.is_none() {
        println!("skipped: the package has no documents");
    }
    Some((root, text?))
}

fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The anchor of a heading as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The address in a line that defines a link: `[name]: address`.
fn link(line: &str) -> Option<&str> {
    let (_, address) = line.strip_prefix('[')?.split_once("]: ")?;
    Some(address)
}

fn words(line: &str) -> usize {
    line.split_whitespace().count()
}

/// Words that are the first 7 to 12 digits of a commit.
fn hashes(text: &str) -> Vec<&str> {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let words = text.split(|c: char| !c.is_alphanumeric());
    let of_length = words.filter(|word| (7..=12).contains(&word.len()) && word.chars().all(is_hex));
    of_length.filter(|word| word.contains(|c: char| c.is_ascii_digit())).collect()
}

/// The value of the first `key = "value"` of a file in TOML.
fn value(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='))?;
    Some(line.trim().trim_matches('"').to_owned())
}

#[test]
fn the_readme_is_short_and_in_order() {
    let Some((_, text)) = readme() else { return };
    // Without the addresses of its links.
    let words: usize = text.lines().filter(|line| link(line).is_none()).map(words).sum();
    assert!(words <= MOST_WORDS, "{words} words");
    let sections: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(sections, SECTIONS);
}

#[test]
fn links_of_the_readme_lead_to_files_and_headings() {
    let Some((root, text)) = readme() else { return };
    let repository = value(&read(&root, "Cargo.toml"), "repository").expect("a repository");
    let inner: Vec<_> = text.lines().filter_map(link).collect();
    assert!(inner.len() > 10, "{inner:?}");
    for target in inner {
        // The README is also the page of `courser` in a registry, where paths of files do not exist.
        let (address, fragment) = target.split_once('#').unwrap_or((target, ""));
        let place = address.strip_prefix(&repository).expect(target);
        let (kind, path) = place.split_once("/main/").expect(target);
        let file = root.join(path);
        assert!(if kind == "/tree" { file.is_dir() } else { file.is_file() }, "{target}");
        if !fragment.is_empty() {
            let document = read(&root, path);
            let headings = document.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            assert!(anchors.any(|known| known == fragment), "{target}");
        }
    }
}

#[test]
fn the_readme_names_the_versions_of_rust_that_are_needed() {
    let Some((root, text)) = readme() else { return };
    let oldest = value(&read(&root, "Cargo.toml"), "rust-version").expect("a version");
    let router = value(&read(&root, "apps/router/Cargo.toml"), "rust-version").expect("a version");
    let used = value(&read(&root, "rust-toolchain.toml"), "channel").expect("a version");
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let needed = format!("need Rust {oldest}, the tests {router},");
    assert!(plain.contains(&needed), "{needed}");
    let fetched = format!("fetch {}.", used.trim_end_matches(".0"));
    assert!(plain.contains(&fetched), "{fetched}");
}

#[test]
fn figures_are_of_commits_in_the_history() {
    let Some((root, text)) = readme() else { return };
    let git = |args: &[&str]| Command::new("git").arg("-C").arg(&root).args(args).output();
    let whole = git(&["rev-parse", "--is-shallow-repository"]);
    if !whole.is_ok_and(|output| output.stdout == b"false\n") {
        return println!("skipped: no git, or not the whole history");
    }
    let is_known = |hash: &str| {
        let ancestor = git(&["merge-base", "--is-ancestor", hash, "HEAD"]);
        ancestor.is_ok_and(|output| output.status.success())
    };
    let named = hashes(&text);
    assert!(!named.is_empty(), "figures have commits");
    let unknown: Vec<_> = named.into_iter().filter(|hash| !is_known(hash)).collect();
    assert!(unknown.is_empty(), "in the README: {unknown:?}");
    // Others may be of a build outside of the history, if the list of results says so.
    let (figures, results) =
        (read(&root, "docs/performance.md"), read(&root, "docs/results/README.md"));
    let unknown = hashes(&figures).into_iter().filter(|hash| !is_known(hash));
    let unnamed: Vec<_> = unknown.filter(|hash| !results.contains(hash)).collect();
    assert!(unnamed.is_empty(), "in docs/performance.md: {unnamed:?}");
}

#[test]
fn hashes_anchors_and_values_are_found_in_a_text() {
    assert_eq!(
        hashes("a 137e637, `805698b3`; 1,234,567 deadbeef 31850 1234567g"),
        ["137e637", "805698b3"]
    );
    assert_eq!(anchor("Known cliffs (`shm`)"), "known-cliffs-shm");
    assert_eq!(
        value("a = \"1\"\nrust-version = \"1.88\"\n", "rust-version").as_deref(),
        Some("1.88")
    );
    assert_eq!(value("rust-version.workspace = true\n", "rust-version"), None);
}
