//! Tests of `docs/conformance.md`: each item of the papers has one row, the tests and files that it
//! names exist, and its counts are right.

use std::collections::BTreeMap;
use std::path::Path;

/// Items of the papers by letter, each numbered from 1: eRPC, MELO, scatter-gather batching.
const ITEMS: &[(char, u32)] = &[('E', 105), ('M', 35), ('S', 27)];

const STATES: [&str; 3] = ["shown", "part", "open"];

/// Directories at the root whose files a document may name.
const PARTS: [&str; 7] = ["crates/", "apps/", "lab/", "examples/", "scripts/", "docs/", ".ci/"];

/// The text of a file by its path from the root; an empty one for a directory.
type Files<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Everything that is wrong in the document, one line each.
fn faults(text: &str, items: &[(char, u32)], files: Files<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        names(line, files, &mut faults);
        let Some((id, state)) = row(line) else { continue };
        if rows.insert(id, state).is_some() {
            faults.push(format!("{id} has two rows"));
        }
        if !STATES.contains(&state) {
            faults.push(format!("{id}: the state is \"{state}\", and not one of {STATES:?}"));
        }
    }
    let all = items.iter().flat_map(|&(letter, last)| (1..=last).map(move |n| (letter, n)));
    let all: Vec<String> = all.map(|(letter, n)| format!("{letter}{n}")).collect();
    let missing = all.iter().filter(|id| !rows.contains_key(id.as_str()));
    faults.extend(missing.map(|id| format!("{id} has no row")));
    let unknown = rows.keys().filter(|id| !all.iter().any(|known| known == *id));
    faults.extend(unknown.map(|id| format!("{id} is no item")));
    let of = |wanted: &str| rows.values().filter(|state| **state == wanted).count();
    let [shown, part, open] = STATES.map(of);
    let counts = format!("Of {} items {shown} are shown, {part} in part, {open} open.", rows.len());
    if !text.contains(&counts) {
        faults.push(format!("the counts are not those of the rows: {counts}"));
    }
    faults
}

/// The id and the state of a row about an item: five cells, of which the first is an id.
fn row(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<_> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let (id, state) = (*cells.first()?, *cells.get(4)?);
    let number = id.strip_prefix(|first: char| first.is_ascii_uppercase())?;
    let is_id = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_id.then_some((id, if cells.len() == 6 { state } else { "a line with other cells" }))
}

/// Checks the files, tests and links that a line names.
fn names(line: &str, files: Files<'_>, faults: &mut Vec<String>) {
    let subject = line.get(..line.len().min(12)).unwrap_or_default();
    let mut file = String::new();
    for quoted in line.split('`').skip(1).step_by(2) {
        if quoted.contains(' ') {
            continue;
        }
        let (path, test) = match quoted.split_once("::") {
            Some((path, test)) if path.is_empty() || path.ends_with(".rs") => (path, Some(test)),
            _ => (quoted, None),
        };
        let is_path = path.ends_with(".rs") || PARTS.iter().any(|part| path.starts_with(part));
        for path in alternatives(path).iter().filter(|_| is_path) {
            if files(path).is_none() {
                faults.push(format!("{subject}: there is no file {path}"));
            }
            file.clone_from(path);
        }
        if let Some(test) = test {
            let source = files(&file).unwrap_or_default();
            if !has_test(&source, test) {
                faults.push(format!("{subject}: {file} has no test {test}"));
            }
        }
    }
    for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let path = target.split('#').next().unwrap_or_default();
        let path = path.strip_prefix("../").map_or_else(|| format!("docs/{path}"), str::to_owned);
        if files(&path).is_none() {
            faults.push(format!("{subject}: there is no file {target}"));
        }
    }
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| {
        let (inner, after) = rest.split_once('}')?;
        Some(inner.split(',').map(|name| format!("{before}{name}{after}")).collect())
    });
    parts.unwrap_or_else(|| vec![path.to_owned()])
}

/// True if a source has this test: a function below an attribute that ends with `test]`, or a line
/// `name: ...` of a macro that makes tests.
fn has_test(source: &str, name: &str) -> bool {
    let mut is_test = false;
    let makes_tests = source.contains("macro_rules!") && source.contains("#[test]");
    source.lines().map(str::trim).any(|line| {
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let named = |text: &str, end| text.strip_prefix(name).is_some_and(|t| t.starts_with(end));
        let found = match function {
            Some(function) => is_test && named(function, '('),
            None => makes_tests && named(line, ':'),
        };
        if line.starts_with("#[") {
            is_test |= line.ends_with("test]");
        } else if !line.starts_with("//") {
            is_test = false;
        }
        found
    })
}

#[test]
fn every_item_has_a_row_and_what_the_rows_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(text) = std::fs::read_to_string(root.join("docs/conformance.md")) else {
        return println!("skipped: the package has no documents");
    };
    let files = |path: &str| {
        let path = root.join(path);
        if path.is_dir() { Some(String::new()) } else { std::fs::read_to_string(path).ok() }
    };
    let faults = faults(&text, ITEMS, &files);
    assert!(faults.is_empty(), "{faults:#?}");
    let recorded = crate::recorded::items();
    let start = text.find("Results of simulated experiments (").expect("the list of experiments");
    let list = text[start..].split(['(', ')']).nth(1).unwrap_or_default();
    assert_eq!(list, recorded.join(", "), "the experiments of the introduction");
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: &[(char, u32)] = &[('E', 2), ('M', 1)];

    const RIGHT: &str = "\
Of 3 items 1 are shown, 1 in part, 1 open. Raw results are in [results](results/README.md).

| id | requirement | code | evidence | state |
| --- | --- | --- | --- | --- |
| E1 | one | `crates/a.rs` `run` | `crates/a/tests.rs::it_runs`, `::it_ends`; `courser bench rate` | shown |
| E2 | two | `crates/{a,b}.rs` | `crates/m.rs::made_by_a_macro` | part |

| M1 | three |  |  | open |
";

    fn files(path: &str) -> Option<String> {
        let text = match path {
            "crates/a.rs" | "crates/b.rs" | "docs/results/README.md" => "",
            "crates/a/tests.rs" => {
                "#[test]\nfn it_runs() {\n}\n\n#[tokio::test]\n// Why.\nasync fn it_ends() {\n}\n\
                 fn helper() {\n}"
            }
            "crates/m.rs" => "macro_rules! tests { #[test] }\n    made_by_a_macro: It,\n",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn found(text: &str) -> Vec<String> {
        faults(text, ITEMS, &files)
    }

    /// Asserts that the document with this change has one fault.
    fn one_fault(from: &str, to: &str, fault: &str) {
        assert!(RIGHT.contains(from), "{from}");
        let all = found(&RIGHT.replacen(from, to, 1));
        assert!(all.len() == 1 && all[0].contains(fault), "{to}: {all:?}");
    }

    #[test]
    fn a_right_document_has_no_faults() {
        assert_eq!(found(RIGHT), [""; 0]);
    }

    #[test]
    fn a_missing_a_second_and_an_unknown_row_are_faults() {
        let row = "| M1 | three |  |  | open |\n";
        let all = found(&RIGHT.replace(row, ""));
        assert!(all.iter().any(|fault| fault == "M1 has no row"), "{all:?}");
        let all = found(&RIGHT.replace(row, &row.repeat(2)));
        assert_eq!(all, ["M1 has two rows"]);
        let all = found(&RIGHT.replace(row, &(row.to_owned() + "| M2 | four |  |  | open |")));
        assert!(all.iter().any(|fault| fault == "M2 is no item"), "{all:?}");
    }

    #[test]
    fn names_of_tests_that_do_not_exist_are_faults() {
        one_fault("::it_runs", "::it_walks", "crates/a/tests.rs has no test it_walks");
        one_fault("`::it_ends`", "`::it_end`", "crates/a/tests.rs has no test it_end");
        one_fault("::it_runs", "::helper", "crates/a/tests.rs has no test helper");
        one_fault("made_by_a_macro", "made_by", "crates/m.rs has no test made_by");
    }

    #[test]
    fn names_of_files_that_do_not_exist_are_faults() {
        one_fault("`crates/a.rs`", "`crates/c.rs`", "there is no file crates/c.rs");
        one_fault("{a,b}", "{a,c}", "there is no file crates/c.rs");
        one_fault("`crates/a.rs`", "`a.rs`", "there is no file a.rs");
        one_fault("results/README.md", "results/none.md", "there is no file results/none.md");
    }

    #[test]
    fn wrong_counts_and_states_are_faults() {
        one_fault("1 are shown", "2 are shown", "Of 3 items 1 are shown, 1 in part, 1 open.");
        one_fault("Of 3 items", "Of 4 items", "Of 3 items");
        one_fault("| shown |\n", "| part |\n", "Of 3 items 0 are shown, 2 in part, 1 open.");
        let all = found(&RIGHT.replace("| open |", "| nearly |"));
        assert!(all.iter().any(|fault| fault.contains("\"nearly\"")), "{all:?}");
        let all = found(&RIGHT.replace("| three |  |", "| three |"));
        assert!(!all.is_empty());
    }
}
