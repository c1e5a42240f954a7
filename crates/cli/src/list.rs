//! `courser list`: the services of a running server, with their methods.

use std::io::Write;

use courser_kit::{Failure, json, out};
use serde_json::Value;

use crate::args::ListArgs;
use crate::stat::typed::Introspected;

/// Most characters of a shape that are shown.
const MOST_SHAPE: usize = 60;

/// Prints the list.
///
/// # Errors
/// There is no server at the address, or it has no list, or does not allow it.
pub(crate) fn run(args: &ListArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let list = Introspected::connect(&args.uri, args.bind.as_deref())?.list()?;
    if let Some(target) = &args.json {
        return json::write(target, &list);
    }
    let mut out = out::stdout();
    out.write_all(render(&list.into()).as_bytes())?;
    Ok(out.flush()?)
}

/// A text of the server without control characters, shortened.
fn text(of: &Value, name: &str) -> String {
    let text = of[name].as_str().unwrap_or_default();
    let clean: String = text.chars().filter(|c| !c.is_control()).take(MOST_SHAPE).collect();
    if text.chars().count() > MOST_SHAPE { clean + "…" } else { clean }
}

fn items(of: &Value, name: &str) -> Vec<Value> {
    of[name].as_array().cloned().unwrap_or_default()
}

fn render(list: &Value) -> String {
    let mut lines = String::new();
    for service in items(list, "services") {
        let (name, codec) = (text(&service, "name"), text(&service, "codec"));
        lines += &format!("{name}  codec {codec}  {}\n", text(&service, "fingerprint"));
        for method in items(&service, "methods") {
            lines += &format!("  {}  {}\n", text(&method, "name"), text(&method, "kind"));
            for part in ["arguments", "sent", "value", "error"] {
                lines += &format!("    {part:<10}{}\n", text(&method, part));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_a_server_are_cleaned_and_shortened() {
        let odd = json!({ "services": [{ "name": "a\u{1b}[2J", "methods": [{ "name": "m".repeat(999) }] }, 7] });
        let shown = render(&odd);
        assert!(!shown.contains('\u{1b}') && shown.len() < 700, "{shown:?}");
        assert_eq!(render(&json!({ "services": {} })), "");
    }
}
