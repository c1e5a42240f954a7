//! `courser serve`: answers the calls of `ping` and `bench`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use courser::{Config, EndpointHandle, Nexus, Uri};

use crate::args::ServeArgs;
use crate::stat;
use courser_bench::rpc::service;
use courser_kit::Failure;
use courser_kit::VERSION;
use courser_kit::interrupt::Interrupt;
use courser_kit::out::{self, BOLD, Out};
use courser_kit::text::wrap;

/// Time limit for open requests after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// Message of an endpoint's thread when it is ready.
struct Started {
    handle: EndpointHandle,
    port: u32,
    warnings: Vec<String>,
}

/// Counters of an endpoint at its end.
#[derive(Default)]
struct Served {
    requests: u64,
    drops: u64,
}

/// Serves until a signal arrives.
///
/// # Errors
/// The address cannot be bound, or an endpoint's event loop failed.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = Config {
        control: args.control,
        recovery: args.recovery,
        packing: args.packing,
        ..Config::default()
    };
    let nexus = Nexus::bind_with(&args.bind, config)?;
    let nexus = std::sync::Arc::new(nexus);
    let mut out = out::stdout();
    let (mut started, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..args.threads {
        // Endpoints start one after the other, so that endpoint N has the N-th port.
        let (sender, receiver) = mpsc::channel();
        threads.push(start(nexus.clone(), args.threads, sender)?);
        match receiver.recv() {
            Ok(one) => started.push(one?),
            Err(_) => return Err(Failure::Runtime("an endpoint's thread ended early".to_owned())),
        }
    }
    let handles = started.iter().map(|one| one.handle.clone()).collect();
    let interrupt = Interrupt::stop(handles)?;
    print_warnings(&started);
    // A closed standard output does not end the server.
    let announced = announce(&mut out, args, &nexus, &started);
    if let Err(error) = announced
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(error.into());
    }
    let mut served = Served::default();
    for thread in threads {
        let ended = thread.join();
        let one =
            ended.map_err(|_| Failure::Runtime("an endpoint's thread panicked".to_owned()))??;
        served.requests += one.requests;
        served.drops += one.drops;
    }
    drop(interrupt);
    let Served { requests, drops } = served;
    writeln!(out, "\nserved {requests} requests; discarded {drops} packets")?;
    Ok(())
}

fn start(
    nexus: std::sync::Arc<Nexus>,
    endpoints: u16,
    sender: Sender<Result<Started, Failure>>,
) -> Result<JoinHandle<Result<Served, Failure>>, Failure> {
    let thread = thread::Builder::new().name("courser-endpoint".to_owned());
    Ok(thread.spawn(move || {
        let mut rpc = match nexus.endpoint() {
            Ok(rpc) => rpc,
            Err(error) => {
                let _ = sender.send(Err(error.into()));
                return Ok(Served::default());
            }
        };
        service::register(&mut rpc);
        let statistics = stat::service::Service::register(&mut rpc, own_ip(&nexus));
        let started = Started { handle: rpc.handle(), port: rpc.port(), warnings: rpc.warnings() };
        let _ = sender.send(Ok(started));
        let process = || stat::service::process(&nexus, endpoints);
        let ran = statistics.run(&mut rpc, process);
        ran.map_err(|error| Failure::Runtime(error.to_string()))?;
        let served = Served { requests: rpc.stats().requests, drops: rpc.stats().drops_total() };
        // Open requests are answered; a second signal ends the process immediately.
        let ended = rpc.shutdown(GRACE);
        ended.map_err(|error| Failure::Runtime(error.to_string()))?;
        Ok(served)
    })?)
}

/// Prints each warning once, with the number of endpoints that have it.
fn print_warnings(started: &[Started]) {
    let mut seen: Vec<&String> = Vec::new();
    for warning in started.iter().flat_map(|one| &one.warnings) {
        if !seen.contains(&warning) {
            out::warn(warning);
            seen.push(warning);
        }
    }
}

fn announce(
    out: &mut Out,
    args: &ServeArgs,
    nexus: &Nexus,
    started: &[Started],
) -> std::io::Result<()> {
    let port = nexus.port();
    let local = nexus.local_uri();
    let bound =
        args.bind.parse().map_or_else(|_| local.clone(), |u: Uri| Uri { port, ..u }.to_string());
    let endpoints = match started.len() {
        1 => "1 endpoint".to_owned(),
        n => format!("{n} endpoints"),
    };
    writeln!(
        out,
        "{BOLD}courser {VERSION}{BOLD:#} serves on\n{bound} ({endpoints}); Ctrl-C ends it\n"
    )?;
    writeln!(out, "  on this machine   courser ping {local}")?;
    writeln!(out, "  its counters      courser stat {local}")?;
    let shared_memory = local.starts_with("shm://");
    match host_for_others(&args.bind) {
        _ if shared_memory => {
            writeln!(out, "  measure           courser bench rate --connect {local}")?;
            writeln!(
                out,
                "  elsewhere         cannot reach shared memory: bind udp://0.0.0.0:{port}"
            )?;
        }
        Some(host) => {
            let there = match host {
                // The interface of a link-local address is that of the client's machine.
                IpAddr::V6(ip) if ip.is_unicast_link_local() => format!("[{ip}%INTERFACE]:{port}"),
                host => SocketAddr::new(host, port).to_string(),
            };
            writeln!(out, "  elsewhere         courser ping udp://{there}")?;
            writeln!(out, "  measure           courser bench rate --connect udp://{there}")?;
        }
        None => {
            writeln!(
                out,
                "  elsewhere         closed; to open: courser serve --bind udp://0.0.0.0:{port}"
            )?;
        }
    }
    if !shared_memory && host_for_others(&args.bind).is_some() {
        let udp = ports(started.iter().map(|one| one.port));
        for (at, line) in
            wrap(&format!("TCP {port} (sessions), UDP {udp} (packets)"), 60).iter().enumerate()
        {
            let name = if at == 0 { "ports to open" } else { "" };
            writeln!(out, "  {name:<18}{line}")?;
        }
    }
    writeln!(out, "  trust             no encryption, no authentication: trusted networks only")?;
    out.flush()
}

/// The address by which programs of this machine reach the server, and have themselves.
fn own_ip(nexus: &Nexus) -> Option<IpAddr> {
    nexus.local_uri().parse::<Uri>().ok()?.ip()
}

/// The address by which other machines probably reach this one; `None` for a loopback address and for a
/// name, which can only be `localhost`.
fn host_for_others(bind: &str) -> Option<IpAddr> {
    let uri: Uri = bind.parse().ok()?;
    match uri.ip()?.to_canonical() {
        host if host.is_loopback() => None,
        host if host.is_unspecified() => {
            primary(host.is_ipv6()).or(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)))
        }
        host => Some(host),
    }
}

/// The source address that the routing table selects for a remote host. It is read from a connected UDP
/// socket, which sends no packet; the remote addresses are reserved for documentation.
fn primary(ipv6_too: bool) -> Option<IpAddr> {
    let v4 = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    let source = |far: IpAddr| {
        let any = match far {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    source(v4).or_else(|| source(v6).filter(|_| ipv6_too))
}

/// Ports for a firewall rule: `31850`, `31850-31853` or `31850, 40112`.
fn ports(ports: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == port => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let shown = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_shown_as_ranges() {
        assert_eq!(ports([31850]), "31850");
        assert_eq!(ports([31850, 31851, 31852]), "31850-31852");
        assert_eq!(ports([31850, 40112, 40113]), "31850, 40112-40113");
    }

    #[test]
    fn a_loopback_bind_cannot_be_reached_from_elsewhere() {
        for local in ["udp://127.0.0.1:1", "udp://localhost:1", "udp://[::1]:1"] {
            assert_eq!(host_for_others(local), None, "{local}");
        }
        assert!(host_for_others("udp://[fe80::1%eth0]:1").is_some());
        let given = host_for_others("udp://10.1.2.3:1");
        assert_eq!(given, Some(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))));
        assert!(host_for_others("udp://0.0.0.0:1").is_some_and(|host| !host.is_unspecified()));
    }
}
