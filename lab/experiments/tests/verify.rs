//! `courser-lab verify`, `record` and `report`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{courser, error_line, json_of, refused, run, stderr, stdout};
use serde_json::{Value, json};

/// A directory with a copy of the recorded results of E44, which takes milliseconds.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let directory =
            std::env::temp_dir().join(format!("courser-verify-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("temporary directory");
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/E44.json");
        fs::copy(recorded, directory.join("E44.json")).expect("copied");
        Copy(directory)
    }

    fn file(&self) -> PathBuf {
        self.0.join("E44.json")
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(self.file()).expect("reads");
        let mut value = serde_json::from_str(&text).expect("JSON");
        edit(&mut value);
        fs::write(self.file(), value.to_string()).expect("writes");
    }

    fn command(&self) -> String {
        format!("verify --short --only E44 --recorded {}", self.0.display())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Scales the recorded median of the first point.
fn scale(recorded: &mut Value, by: f64) {
    let median = &mut recorded["short"]["points"][0]["median"];
    *median = json!(median.as_f64().expect("a number") * by);
}

#[test]
fn a_new_measurement_fits_the_recorded_one() {
    let copy = Copy::new("same");
    let output = run(&copy.command());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("E44") && text.contains("fits"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    copy.edit(|recorded| scale(recorded, 1.001));
    assert!(run(&copy.command()).status.success(), "within its tolerance");
    let report = json_of(&format!("{} --json -", copy.command()));
    assert_eq!(report["bench"], "verify");
    let results = report["results"].as_array().expect("a list");
    assert!(!results.is_empty() && results.iter().all(|r| r["fits"] == true), "{results:?}");
}

#[test]
fn a_recorded_value_beyond_its_tolerance_is_reported() {
    let copy = Copy::new("edited");
    copy.edit(|recorded| scale(recorded, 1.02));
    let output = run(&copy.command());
    assert_eq!(output.status.code(), Some(1));
    let error = error_line(&output);
    for part in ["E44: extra, round trips, one rack", "recorded 0.8", "measured 0.8", "tolerance"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(stdout(&output).contains("1 OFF"), "{}", stdout(&output));
}

#[test]
fn an_edited_range_is_reported() {
    for end in ["min", "max"] {
        let copy = Copy::new(end);
        copy.edit(|recorded| {
            let value = &mut recorded["short"]["points"][0][end];
            *value = json!(value.as_f64().expect("a number") * 1.02);
        });
        let output = run(&copy.command());
        assert_eq!(output.status.code(), Some(1), "{end}");
        assert!(error_line(&output).contains("range recorded 0.8"), "{}", error_line(&output));
    }
}

#[test]
fn a_point_that_is_not_recorded_or_not_measured_is_reported() {
    let copy = Copy::new("missing");
    copy.edit(|recorded| {
        recorded["short"]["points"].as_array_mut().expect("a list").remove(0);
    });
    let output = run(&copy.command());
    assert_eq!(output.status.code(), Some(1));
    assert!(error_line(&output).contains("measured, but not recorded"));
    let copy = Copy::new("added");
    copy.edit(|recorded| {
        let points = recorded["short"]["points"].as_array_mut().expect("a list");
        let mut point = points[0].clone();
        point["x"] = json!(1000.0);
        points.push(point);
    });
    let output = run(&copy.command());
    assert_eq!(output.status.code(), Some(1));
    assert!(error_line(&output).contains("recorded, but not measured"));
}

#[test]
fn other_settings_than_the_recorded_ones_are_reported() {
    let copy = Copy::new("settings");
    copy.edit(|recorded| recorded["short"]["settings"][0]["credits"] = json!(31));
    let output = run(&copy.command());
    assert_eq!(output.status.code(), Some(1));
    assert!(error_line(&output).contains("E44 was recorded with other settings"));
}

#[test]
fn files_that_are_missing_or_malformed_are_named() {
    let copy = Copy::new("malformed");
    let command = copy.command();
    copy.edit(|recorded| recorded["experiment"] = json!("E81"));
    refused(&command, "it is of experiment E81");
    copy.edit(|recorded| {
        recorded["experiment"] = json!("E44");
        recorded["short"]["points"][0]["tolerance"]["relative"] = json!(-1.0);
    });
    refused(&command, "negative tolerance");
    copy.edit(|recorded| recorded["short"] = Value::Null);
    refused(&command, "it has no short runs");
    fs::write(copy.file(), "{").expect("writes");
    refused(&command, "E44.json has no recorded results");
    fs::remove_file(copy.file()).expect("removes");
    refused(&command, "there is no file");
    refused("verify --only E1000", "there is no experiment E1000");
}

#[test]
fn recording_again_changes_nothing() {
    let copy = Copy::new("record");
    let before = fs::read(copy.file()).expect("reads");
    let line = format!("record --short --only E44 --threads 1 --recorded {}", copy.0.display());
    assert!(run(&line).status.success());
    assert_eq!(fs::read(copy.file()).expect("reads"), before);
    refused("record --recorded nowhere", "nowhere is no directory");
}

#[test]
fn a_report_is_one_page() {
    let copy = Copy::new("report");
    let (page, directory) = (copy.0.join("report.html"), copy.0.display());
    let output = run(&format!("report --out {} --recorded {directory}", page.display()));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = fs::read_to_string(page).expect("reads");
    assert!(text.starts_with("<!DOCTYPE html>") && text.contains("<svg "), "{text}");
    refused(&format!("report --out {directory}/page.html --recorded nowhere"), "nowhere");
}

/// Runs a command in an empty folder, which is not the repository.
fn elsewhere(name: &str, line: &str) -> (PathBuf, std::process::Output) {
    let directory =
        std::env::temp_dir().join(format!("courser-elsewhere-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("temporary directory");
    let child = courser(line).current_dir(&directory).output();
    (directory, child.expect("runs"))
}

#[test]
fn a_report_is_written_from_any_folder() {
    let (directory, output) = elsewhere("report", "report --out page.html");
    assert!(output.status.success(), "{}", stderr(&output));
    let page = fs::read_to_string(directory.join("page.html")).expect("reads");
    for text in ["<h2 id=\"E35\">", "<h2 id=\"M24\">", ", better<", ", worse<"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("name=\"viewport\"") && page.contains("@media (max-width:"));
    let (_, output) = elsewhere("report", "report --out tables.md");
    assert!(output.status.success(), "{}", stderr(&output));
    let tables = fs::read_to_string(directory.join("tables.md")).expect("reads");
    assert!(tables.contains("| ours, one run |") && tables.contains(", worse |"), "{tables}");
    fs::remove_dir_all(directory).expect("removes");
}

#[test]
fn experiments_are_verified_from_any_folder() {
    let (directory, output) = elsewhere("verify", "verify --short --only E44");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("fits"), "{}", stdout(&output));
    let (_, output) = elsewhere("verify", "verify --short --only E44 --recorded .");
    assert_eq!(output.status.code(), Some(2));
    assert!(error_line(&output).contains("E44.json: there is no file"), "{}", error_line(&output));
    fs::remove_dir_all(directory).expect("removes");
}
