//! Description of the machine of a measurement. Values that cannot be read are `null`.

use std::fs::File;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::affinity::{self, Cores};
use crate::generation;

/// The machine and the build behind a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the processor.
    pub cpu_model: Option<String>,
    /// Its generation, such as `Zen 4`: processors with the same name may be of several. Its numbers if
    /// the program has no name for it; `null` if unknown.
    pub cpu_generation: Option<String>,
    /// Online cores.
    pub cpus_online: Option<usize>,
    /// Cores that the benchmark may use.
    pub cpus_usable: usize,
    /// Core of the measuring side.
    pub client_cpu: usize,
    /// Core of the other side.
    pub server_cpu: usize,
    /// CPU quota of the control groups in cores; `null` if unlimited.
    pub cpu_quota: Option<f64>,
    /// Frequency governor of the first core.
    pub governor: Option<String>,
    /// True on a virtual machine; `null` if unknown.
    pub hypervisor: Option<bool>,
    /// Kernel release.
    pub kernel: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Limit of socket receive buffers (`net.core.rmem_max`), bytes.
    pub rmem_max: Option<u64>,
    /// Rate error of the benchmark's clock against the system clock, parts per million.
    pub clock_error_ppm: Option<i64>,
    /// Version of this program.
    pub courser_version: String,
    /// Time of the measurement, seconds since 1970, UTC.
    pub time_utc_s: u64,
}

impl Environment {
    /// Reads the description. Called at the end of a run, when the clock error is known.
    pub fn collect(clock_error_ppm: Option<i64>, cores: &Cores) -> Self {
        let cpu = read_start("/proc/cpuinfo").unwrap_or_default();
        let memory = rustix::system::sysinfo();
        Self {
            cpu_model: cpu_field(&cpu, "model name").map(str::to_owned),
            cpu_generation: generation::of(|name| cpu_field(&cpu, name)),
            cpus_online: read_start("/sys/devices/system/cpu/online")
                .map(|list| affinity::parse_cpu_list(&list).len()),
            cpus_usable: cores.usable,
            client_cpu: cores.client,
            server_cpu: cores.server,
            cpu_quota: affinity::cpu_quota(),
            governor: read_start("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|text| text.trim().to_owned()),
            hypervisor: cpu_field(&cpu, "flags")
                .map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
            rmem_max: read_start("/proc/sys/net/core/rmem_max")
                .and_then(|text| text.trim().parse().ok()),
            clock_error_ppm,
            courser_version: env!("CARGO_PKG_VERSION").to_owned(),
            time_utc_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }
}

/// The first 64 KiB of a file: `/proc/cpuinfo` is larger on machines with many cores, and only its
/// first entry is needed.
fn read_start(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(64 * 1024).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of the first `name : value` line of `/proc/cpuinfo`.
fn cpu_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_of_a_name_is_read() {
        let text = "processor\t: 0\nmodel name\t: Fast: 9000\nflags\t\t: fpu hypervisor\n\
                    processor\t: 1\nmodel name\t: Other\n";
        assert_eq!(cpu_field(text, "model name"), Some("Fast: 9000"));
        assert_eq!(cpu_field(text, "flags"), Some("fpu hypervisor"));
        assert_eq!(cpu_field(text, "model"), None);
    }

    #[test]
    fn the_environment_of_this_machine_is_complete() {
        let cores = affinity::choose().expect("cores");
        let here = std::thread::spawn(move || {
            affinity::pin_current_thread(cores.client).expect("pin");
            Environment::collect(None, &cores)
        })
        .join()
        .expect("no panic");
        assert!(!here.kernel.is_empty());
        assert!(here.memory_bytes > 0 && here.time_utc_s > 1_700_000_000);
        let usable = affinity::usable_cpus().expect("mask").len();
        assert_eq!(here.cpus_usable, usable, "not changed by the pin");
        assert!(here.cpus_online >= Some(usable));
    }

    #[test]
    fn a_missing_file_is_none() {
        assert_eq!(read_start("/nonexistent"), None);
    }
}
