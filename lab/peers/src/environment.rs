//! The machine and the library versions of a report.

use courser_bench::clock::Clock;
use courser_kit::affinity::Cores;
use courser_kit::environment::Environment;
use serde_json::{Map, Value, json};

/// The versions that this program was built with.
const LOCK: &str = include_str!("../Cargo.lock");

/// Libraries whose versions a reader wants to know.
const LIBRARIES: &[&str] = &[
    "courser",
    "tonic",
    "prost",
    "hyper",
    "h2",
    "tarpc",
    "capnp",
    "capnp-rpc",
    "quinn",
    "rustls",
    "tokio",
];

/// The report's `environment`: that of the harness, and the versions of the libraries.
///
/// # Errors
/// It cannot be written as JSON.
pub fn collect(clock: &Clock, cores: &Cores) -> serde_json::Result<Value> {
    let mut here = serde_json::to_value(Environment::collect(clock.error_ppm(), cores))?;
    here["versions"] = versions().into();
    Ok(here)
}

fn versions() -> Map<String, Value> {
    let version = |name: &&str| {
        let rest = LOCK.split_once(&format!("name = \"{name}\"\nversion = \""))?.1;
        Some(((*name).to_owned(), json!(rest.split_once('"')?.0)))
    };
    LIBRARIES.iter().filter_map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_libraries_have_versions() {
        let versions = versions();
        for name in LIBRARIES {
            let version = versions.get(*name).and_then(Value::as_str).unwrap_or_default();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{name}: {version}");
        }
    }
}
