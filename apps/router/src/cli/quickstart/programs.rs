//! `ping` and `traceroute` on hosts.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use courser_kit::Failure;
use courser_router::netns::{self, Namespace, Unavailable};
use serde_json::{Value, json};

use super::screen::Screen;
use crate::cli::cluster::Demo;

/// What the programs printed. `None`: the program is missing.
#[derive(Default)]
pub(super) struct Programs {
    pub(super) ping_v4: Option<Ping>,
    pub(super) ping_v6: Option<Ping>,
    traceroute_v4: Option<Vec<String>>,
    traceroute_v6: Option<Vec<String>>,
}

/// Round-trip times.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Ping {
    pub(super) lost: bool,
    pub(super) mean_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
}

impl Programs {
    pub(super) fn json(&self) -> Value {
        let ping = |ping: &Option<Ping>| {
            let ping = ping.as_ref()?;
            Some(json!({ "ping_rtt_ns": ping.mean_ns, "ping_rtt_max_ns": ping.max_ns }))
        };
        json!({
            "ping_ipv4": ping(&self.ping_v4),
            "ping_ipv6": ping(&self.ping_v6),
            "traceroute_ipv4": self.traceroute_v4,
            "traceroute_ipv6": self.traceroute_v6,
        })
    }
}

/// Runs the programs from host a to host b.
pub(super) fn run(screen: &mut Screen, demo: &Demo) -> Result<Programs, Failure> {
    let (v4, v6) = (netns::host_v4(1).into(), netns::host_v6(1).into());
    screen.heading("From host a to host b")?;
    let programs = Programs {
        ping_v4: ping(screen, demo, v4)?,
        ping_v6: ping(screen, demo, v6)?,
        traceroute_v4: traceroute(screen, demo, v4)?,
        traceroute_v6: traceroute(screen, demo, v6)?,
    };
    screen.line("")?;
    Ok(programs)
}

fn ping(screen: &mut Screen, demo: &Demo, to: IpAddr) -> Result<Option<Ping>, Failure> {
    let line = format!("ping -n -c 3 -i 0.2 -w 3 {to}");
    let Some(text) = output(screen, demo.host(0), &line, "iputils-ping")? else {
        return Ok(None);
    };
    screen.line(&format!("  $ {line}"))?;
    for line in text.lines().filter(|l| l.contains("icmp_seq=") || l.contains("packet loss")) {
        screen.line(&format!("  {line}"))?;
    }
    Ok(Some(parse_ping(&text)))
}

/// Reads the last lines of ping's output.
fn parse_ping(text: &str) -> Ping {
    let times = text.lines().find(|line| line.contains("min/avg/max"));
    let times = times.and_then(|line| line.split_once('='));
    let times: Vec<f64> = times
        .map(|(_, times)| times.trim().split('/').map_while(|t| t.parse().ok()).collect())
        .unwrap_or_default();
    let ns = |at: usize| times.get(at).map(|ms| (ms * 1e6) as u64);
    Ping { lost: !text.contains(" 0% packet loss"), mean_ns: ns(1), max_ns: ns(2) }
}

fn traceroute(
    screen: &mut Screen,
    demo: &Demo,
    to: IpAddr,
) -> Result<Option<Vec<String>>, Failure> {
    let line = format!("traceroute -n -q 1 -w 1 -m 4 {to}");
    let Some(text) = output(screen, demo.host(0), &line, "traceroute")? else {
        return Ok(None);
    };
    screen.line(&format!("  $ {line}"))?;
    let hops: Vec<&str> = text.lines().skip(1).collect();
    hops.iter().try_for_each(|hop| screen.line(&format!("  {hop}")))?;
    let address = |hop: &&str| hop.split_whitespace().nth(1).map(str::to_owned);
    Ok(Some(hops.iter().filter_map(address).collect()))
}

/// Pings a host whose node is dead. True: ICMP errors arrived.
pub(super) fn ping_unreachable(
    screen: &mut Screen,
    demo: &Demo,
    to: IpAddr,
) -> Result<Option<bool>, Failure> {
    let line = format!("ping -n -c 2 -i 0.2 -W 1 -w 2 {to}");
    let Some(text) = output(screen, demo.host(0), &line, "iputils-ping")? else {
        return Ok(None);
    };
    screen.line(&format!("  $ {line}"))?;
    let wanted = |l: &&str| l.contains("nreachable") || l.contains("packet loss");
    for line in text.lines().filter(wanted) {
        screen.line(&format!("  {line}"))?;
    }
    Ok(Some(text.contains("nreachable")))
}

/// The output of a program on a host, whatever its exit status. `None` if it is not installed.
fn output(
    screen: &mut Screen,
    host: &Namespace,
    line: &str,
    package: &str,
) -> Result<Option<String>, Failure> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = match host.spawn(command) {
        Ok(process) => process,
        Err(Unavailable::Program { error, .. }) => {
            screen
                .line(&format!("  SKIPPED: {program}: {error} (Debian: apt install {package})"))?;
            return Ok(None);
        }
        Err(error) => return Err(Failure::Runtime(error.to_string())),
    };
    let mut text = Vec::new();
    if let Some(mut stdout) = process.0.stdout.take() {
        let read = stdout.read_to_end(&mut text);
        read.map_err(|error| Failure::Runtime(format!("{program} has no output: {error}")))?;
    }
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_ping_are_read_and_may_be_absent() {
        let text = "3 packets transmitted, 3 received, 0% packet loss, time 402ms\n\
                    rtt min/avg/max/mdev = 0.102/0.251/1.500/0.030 ms\n";
        let ping = Ping { lost: false, mean_ns: Some(251_000), max_ns: Some(1_500_000) };
        assert_eq!(parse_ping(text), ping);
        let busybox = text.replace("rtt min/avg/max/mdev", "round-trip min/avg/max");
        assert_eq!(parse_ping(&busybox), ping);
        let lost = parse_ping("3 packets transmitted, 0 received, 100% packet loss\n");
        assert_eq!(lost, Ping { lost: true, ..Ping::default() });
    }
}
