//! What machine and what versions a number belongs to. Best effort: what cannot be read is `null`.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::child::usable_cpus;
use crate::pair::Cores;

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

/// The report's `environment`.
pub fn collect(cores: Cores) -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpu.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    let memory = rustix::system::sysinfo();
    let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    let number = |path| fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u64>().ok());
    json!({
        "cpu_model": field("model name"),
        "cpus_usable": usable_cpus().map(|cpus| cpus.len()).ok(),
        "client_cpu": cores.client,
        "server_cpu": cores.server,
        "governor": fs::read_to_string(governor).ok().map(|text| text.trim().to_owned()),
        "hypervisor": field("flags").map(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "memory_bytes": memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
        "rmem_max": number("/proc/sys/net/core/rmem_max"),
        "versions": versions(),
        "time_utc_s": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
    })
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
