//! Checks that a program has the commands that texts of the project name.

use std::path::Path;

use clap::Command;

/// Each command line of a program in quotes, in a source or document or in those below a directory.
fn quoted(program: &str, at: &Path, found: &mut Vec<String>) {
    let is_text = |path: &Path| path.extension().is_some_and(|ext| ext == "rs" || ext == "md");
    if at.is_dir() {
        for entry in std::fs::read_dir(at).expect("a directory").flatten() {
            quoted(program, &entry.path(), found);
        }
    } else if is_text(at) {
        let text = std::fs::read_to_string(at).expect("text");
        let begin = format!("`{program} ");
        let lines = text.lines().flat_map(|line| line.split(&begin).skip(1));
        let lines = lines.filter_map(|rest| Some(rest.split_once('`')?.0));
        found.extend(lines.filter(|line| !line.contains('{')).map(str::to_owned));
    }
}

/// Why a command line is not accepted. Values of options are not checked, nor is the part behind an
/// ellipsis. Alternatives, as in `udp|shm`, must all exist.
fn check(mut command: Command, line: &str) -> Result<(), String> {
    let program = command.get_name().to_owned();
    for word in line.split_whitespace() {
        if matches!(word, "..." | "\u{2026}") {
            return Ok(());
        }
        if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next().unwrap_or_default();
            let is_known = |arg: &clap::Arg| arg.get_long() == Some(option);
            let is_general = matches!(option, "help" | "version");
            if !is_general && !command.get_arguments().any(is_known) {
                return Err(format!("`{program} {line}`: there is no option --{option}"));
            }
        } else if command.has_subcommands() {
            let mut found = None;
            for name in word.split('|') {
                found = command.find_subcommand(name);
                if found.is_none() {
                    return Err(format!("`{program} {line}`: there is no command {name}"));
                }
            }
            command = found.cloned().unwrap_or(command);
        }
    }
    Ok(())
}

/// Asserts that all commands exist that texts and documents name, and that those of `wrong` do not.
pub(crate) fn assert_commands_exist(command: &Command, wrong: [&str; 3]) {
    for wrong in wrong {
        assert!(check(command.clone(), wrong).is_err(), "{wrong}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut lines = Vec::new();
    for part in ["crates", "apps", "examples", "docs", "README.md", "CONTRIBUTING.md"] {
        quoted(command.get_name(), &root.join(part), &mut lines);
    }
    assert!(lines.len() > 10, "{lines:?}");
    let wrong: Vec<_> =
        lines.iter().filter_map(|line| check(command.clone(), line).err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
