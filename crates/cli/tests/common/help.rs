//! Checks the help texts of a program: of the program itself and of all its subcommands.

use super::fits;

/// Asserts that lines of all help texts, which are `least` or more, have at most 80 characters and are
/// wrapped evenly.
pub(crate) fn assert_all_fit(least: usize) {
    let mut commands = vec![String::new()];
    let mut checked = 0;
    while let Some(command) = commands.pop() {
        let text = fits(&format!("{command} --help"));
        if let Some(line) = uneven(&text) {
            panic!("{command}: a line ends early: {line}\n{text}");
        }
        if let Some(line) = broken_example(&text) {
            panic!("{command}: an example does not fit its line: {line}\n{text}");
        }
        commands.extend(subcommands(&text).iter().map(|name| format!("{command} {name}")));
        checked += 1;
    }
    assert!(checked >= least, "{checked}");
}

/// A line of the examples that continues the line before it: such a command cannot be copied.
fn broken_example(text: &str) -> Option<&str> {
    let examples = text.lines().skip_while(|line| *line != "Examples:").skip(1);
    let mut lines = examples.take_while(|line| line.starts_with(' '));
    lines.find(|line| !line.trim_start().starts_with("courser"))
}

/// The subcommands that a help text lists.
fn subcommands(text: &str) -> Vec<String> {
    let is_heading = |line: &str| line == "Commands:" || line == "Benchmarks:";
    let list = text.lines().skip_while(|line| !is_heading(line)).skip(1);
    let entries = list.take_while(|line| !line.is_empty()).filter(|line| indent(line) == 2);
    let names = entries.filter_map(|line| line.split_whitespace().next());
    names.filter(|&name| name != "help").map(str::to_owned).collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A line that ends in the middle of a sentence although the next word would fit: text with manual
/// line breaks that was wrapped once more.
fn uneven(text: &str) -> Option<&str> {
    let lines: Vec<_> = text.lines().collect();
    let is_list = |line: &str| line.trim().contains("  ") || line.trim().starts_with(['-', '<']);
    lines.windows(2).find_map(|pair| {
        let [line, next] = pair else { return None };
        let word = next.split_whitespace().next()?;
        let is_sentence = word.starts_with(char::is_lowercase) && !line.ends_with(['.', ':']);
        let is_command = word.starts_with("courser") && indent(next) == 2;
        let same = !line.is_empty() && indent(line) == indent(next);
        let list = is_list(line) || is_list(next);
        let room = line.chars().count() + 1 + word.chars().count() <= 80;
        (same && is_sentence && !is_command && !list && room).then_some(*line)
    })
}

#[test]
fn a_line_that_ends_early_is_found() {
    let even = "Usage: x\n\nThis line is as long as it can be, since the word after it has too many\n\
                characters.\n\nExamples:\n  courser a\n  courser b\n";
    assert_eq!(uneven(even), None);
    for text in ["It ends\nearly.", "  A text\n  word\n  goes on", "one\ntwo"] {
        assert_eq!(uneven(text), text.lines().next(), "{text}");
    }
    assert_eq!(broken_example(even), None);
    assert_eq!(broken_example("Examples:\n  courser a --b\n  c\n\nd"), Some("  c"));
    assert_eq!(subcommands("Commands:\n  ab  one\n      two\n  help  x\n\n  c\n"), ["ab"]);
}
