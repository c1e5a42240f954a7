//! The CPUs of the machine and of the process.

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;

/// CPUs that this process's container may use, quota included, as the first caller found them; at
/// least 1.
pub(crate) fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    if cfg!(all(loom, test)) { 2 } else { *CPUS.get_or_init(machine_cpus) }
}

/// True if the threads of a client or server, which spin and run tasks, may compete for CPUs. Measured
/// with two: yielding halves the latency of single calls, and halves the rate of many.
pub(crate) fn few_cpus() -> bool {
    cpus() <= 4
}

fn machine_cpus() -> usize {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut cpus = parse_list(&read("/sys/devices/system/cpu/online")).len();
    if cpus == 0 {
        cpus = std::thread::available_parallelism().map_or(1, usize::from);
    }
    let groups = read("/proc/self/cgroup");
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    for dir in ["/sys/fs/cgroup".to_owned(), format!("/sys/fs/cgroup/{own}")] {
        let set = parse_list(&read(&format!("{dir}/cpuset.cpus.effective"))).len();
        if set > 0 {
            cpus = cpus.min(set);
        }
        if let Some(quota) = parse_quota(&read(&format!("{dir}/cpu.max"))) {
            cpus = cpus.min(quota);
        }
    }
    cpus.max(1)
}

/// CPUs that any thread of this process may run on.
pub(crate) fn process_cpus() -> BTreeSet<usize> {
    let mut all = BTreeSet::new();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return all };
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        all.extend(parse_list(list.unwrap_or_default()));
    }
    all
}

/// `0-2,5` as the kernel writes it; what cannot be read counts as nothing.
fn parse_list(text: &str) -> BTreeSet<usize> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<usize>()) {
            cpus.extend((first..=last).take(65_536));
        }
    }
    cpus
}

/// Whole CPUs of a `cpu.max` file, rounded down; `None` without a quota.
fn parse_quota(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<usize>().ok()?, period.parse::<usize>().ok()?);
    quota.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_list("0-2,5\n"), BTreeSet::from([0, 1, 2, 5]));
        assert_eq!(parse_list(" 7"), BTreeSet::from([7]));
        assert!(parse_list("").is_empty() && parse_list("x-y,-").is_empty());
    }

    #[test]
    fn quotas() {
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("50000 100000"), Some(0));
        assert_eq!(parse_quota("250000 100000"), Some(2));
        assert_eq!(parse_quota("1 0"), None);
    }
}
