//! CPU affinity: the cores that a benchmark may use, the choice of two of them, and pinning.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Error of reading or setting CPU affinity.
#[derive(Debug, thiserror::Error)]
pub enum AffinityError {
    /// The affinity mask could not be read.
    #[error("cannot read the cores this process may use: {0}; run it outside a sandbox")]
    Read(#[source] Errno),
    /// The affinity mask is empty.
    #[error("this process may not use any core; start it with others (taskset -c 0,1)")]
    NoCpu,
    /// The thread could not be pinned.
    #[error("cannot pin a thread to core {cpu}: {source}; choose cores with taskset -c")]
    Pin {
        /// The requested core.
        cpu: usize,
        /// The error of the kernel.
        source: Errno,
    },
}

/// The cores chosen for the two sides of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Core of the client, the side that measures.
    pub client: usize,
    /// Core of the server; the same as the client's if only one core is usable.
    pub server: usize,
    /// Number of usable cores before pinning: a pinned thread and its children see one.
    pub usable: usize,
    /// A limitation of this choice that affects the results.
    pub warning: Option<String>,
}

impl Cores {
    /// True if client and server have different cores.
    pub fn distinct(&self) -> bool {
        self.client != self.server
    }
}

/// Cores that this thread may run on, in ascending order.
///
/// # Errors
/// [`AffinityError::Read`], also on machines with more than 1024 cores.
pub fn usable_cpus() -> Result<Vec<usize>, AffinityError> {
    let set = sched_getaffinity(None).map_err(AffinityError::Read)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Pins the calling thread to `cpu`. Threads it starts later inherit the pin.
///
/// # Errors
/// [`AffinityError::Pin`] if the core does not exist or is not allowed.
pub fn pin_current_thread(cpu: usize) -> Result<(), AffinityError> {
    let pin = |source| AffinityError::Pin { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(pin(Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(pin)
}

/// Chooses a core for each side, before any thread is pinned. The client gets the last usable core,
/// the server the first one, which also handles the machine's interrupts. If the topology is known,
/// the two are on different physical cores where possible.
///
/// # Errors
/// [`AffinityError::Read`] or [`AffinityError::NoCpu`].
pub fn choose() -> Result<Cores, AffinityError> {
    let mut cores = choose_from(&usable_cpus()?, siblings)?;
    if let Some(quota) = cpu_quota().filter(|&quota| quota < 2.0) {
        let text = format!(
            "the cgroup quota of this process is {quota} cores, so the kernel will stop two \
             polling threads from time to time"
        );
        cores.warning = Some(match cores.warning.take() {
            Some(first) => format!("{first}; {text}"),
            None => text,
        });
    }
    Ok(cores)
}

fn choose_from(
    usable: &[usize],
    siblings: impl Fn(usize) -> Vec<usize>,
) -> Result<Cores, AffinityError> {
    let (&first, &client) = usable.first().zip(usable.last()).ok_or(AffinityError::NoCpu)?;
    if first == client {
        let warning = "only one core is usable: client and server share it, so results \
                       depend on scheduling more than on the transport";
        return Ok(Cores { client, server: client, usable: 1, warning: Some(warning.to_owned()) });
    }
    let shared = siblings(client);
    let apart = usable.iter().copied().find(|&cpu| cpu != client && !shared.contains(&cpu));
    Ok(Cores {
        client,
        server: apart.unwrap_or(first),
        usable: usable.len(),
        warning: apart.is_none().then(|| {
            "client and server run on two hardware threads of one physical core and share \
             its execution units"
                .to_owned()
        }),
    })
}

/// Hardware threads of the physical core of `cpu`; empty if unknown.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).map_or_else(|_| Vec::new(), |text| parse_cpu_list(&text))
}

/// Parses the kernel's list format, `0-3,8,10-11`. Skips ranges that are malformed, reversed or beyond
/// the mask.
pub fn parse_cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<(usize, usize)> {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    text.trim()
        .split(',')
        .filter_map(range)
        .flat_map(|(low, high)| low..=high.min(CpuSet::MAX_CPU - 1))
        .collect()
}

/// CPU quota of this process's control groups in cores; `None` if unlimited or unknown.
pub fn cpu_quota() -> Option<f64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    quota_of(&membership, Path::new("/sys/fs/cgroup"))
}

/// The lowest quota of the process's groups and their ancestors, for cgroup versions 1 and 2.
fn quota_of(membership: &str, root: &Path) -> Option<f64> {
    let v2 = membership.lines().find_map(|line| line.strip_prefix("0::"));
    let v1 = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|c| c == "cpu").then_some(path)
    });
    let unified = v2.into_iter().flat_map(|path| groups(root, path));
    let legacy = v1.into_iter().flat_map(|path| groups(&root.join("cpu"), path));
    unified
        .filter_map(|group| parse_cpu_max(&fs::read_to_string(group.join("cpu.max")).ok()?))
        .chain(legacy.filter_map(|group| {
            let quota = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
            let period = fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
            parse_cpu_max(&format!("{} {}", quota.trim(), period.trim()))
        }))
        .min_by(f64::total_cmp)
}

/// The group at `path` and its ancestors up to `root`.
fn groups(root: &Path, path: &str) -> Vec<PathBuf> {
    let inner = Path::new(path.trim_start_matches('/'));
    // A path with `..` is outside of this cgroup namespace.
    if inner.components().any(|part| part.as_os_str() == "..") {
        return vec![root.to_path_buf()];
    }
    inner.ancestors().map(|part| root.join(part)).collect()
}

/// Parses `quota period` in µs; `max` or -1 means no limit.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (i64, i64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(cpu: usize) -> Vec<usize> {
        vec![cpu]
    }

    #[test]
    fn client_takes_the_last_and_server_the_first_core() {
        let cores = choose_from(&[0, 1, 2, 3], alone).expect("cores");
        assert_eq!((cores.client, cores.server), (3, 0));
        assert_eq!(cores.warning, None);
        assert!(cores.distinct());
    }

    #[test]
    fn the_server_avoids_the_clients_physical_core() {
        // 0 and 3 are threads of one core, 1 and 2 of another.
        let pairs = |cpu| {
            if cpu == 0 || cpu == 3 { vec![0, 3] } else { vec![1, 2] }
        };
        let cores = choose_from(&[0, 1, 2, 3], pairs).expect("cores");
        assert_eq!((cores.client, cores.server), (3, 1));
        assert_eq!(cores.warning, None);
    }

    #[test]
    fn sharing_a_physical_core_is_allowed_with_a_warning() {
        let cores = choose_from(&[0, 1], |_| vec![0, 1]).expect("cores");
        assert_eq!((cores.client, cores.server), (1, 0));
        assert!(cores.warning.is_some());
    }

    #[test]
    fn one_core_is_used_by_both_with_a_warning() {
        let cores = choose_from(&[5], alone).expect("cores");
        assert_eq!((cores.client, cores.server), (5, 5));
        assert!(!cores.distinct());
        assert!(cores.warning.is_some());
    }

    #[test]
    fn no_core_is_an_error() {
        assert!(matches!(choose_from(&[], alone), Err(AffinityError::NoCpu)));
    }

    #[test]
    fn pinning_limits_this_thread_and_only_to_allowed_cores() {
        let cpu = *usable_cpus().expect("mask").last().expect("a core");
        // In another thread, so that the mask of the test runner's thread does not change.
        let seen = std::thread::spawn(move || {
            pin_current_thread(cpu).expect("allowed core");
            usable_cpus().expect("mask")
        });
        assert_eq!(seen.join().expect("no panic"), vec![cpu]);
        for absent in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            assert!(matches!(
                pin_current_thread(absent),
                Err(AffinityError::Pin { cpu, .. }) if cpu == absent
            ));
        }
    }

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("7"), [7]);
        assert!(parse_cpu_list("").is_empty());
        assert!(parse_cpu_list("x,3-1,-").is_empty());
        let capped = parse_cpu_list("0-18446744073709551615");
        assert_eq!(capped.len(), CpuSet::MAX_CPU);
    }

    #[test]
    fn quotas_are_parsed() {
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!(parse_cpu_max("max 100000"), None);
        assert_eq!(parse_cpu_max("-1 100000"), None);
        assert_eq!(parse_cpu_max("1 0"), None);
        assert_eq!(parse_cpu_max(""), None);
    }

    #[test]
    fn the_lowest_quota_of_all_ancestors_counts() {
        let root = std::env::temp_dir().join(format!("courser-quota-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).expect("temporary directory");
        fs::write(inner.join("cpu.max"), "max 100000").expect("write");
        fs::write(root.join("a/cpu.max"), "50000 100000").expect("write");
        fs::write(root.join("cpu.max"), "400000 100000").expect("write");
        let quota = quota_of("0::/a/b\n", &root);
        let outside = quota_of("0::/../a/b\n", &root);
        fs::remove_dir_all(&root).expect("clean up");
        assert_eq!(quota, Some(0.5));
        assert_eq!(outside, Some(4.0));
    }

    #[test]
    fn the_chosen_cores_are_usable() {
        let cores = choose().expect("cores");
        let usable = usable_cpus().expect("mask");
        assert!(usable.contains(&cores.client) && usable.contains(&cores.server));
        assert_eq!(cores.distinct(), usable.len() > 1);
    }
}
