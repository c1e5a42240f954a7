//! Two hosts on one machine: network namespaces that a pair of virtual Ethernet devices joins.
//!
//! Each host has its own devices, addresses and queueing disciplines. A namespace lives as long as
//! its [`Host`]: a child process that waits for the end of its standard input keeps it, so nothing
//! remains when the program is killed. Needs root, and the programs `unshare`, `nsenter` and `ip`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Name of each host's device.
pub const DEVICE: &str = "courser0";

/// Addresses of the hosts, IPv4 and IPv6.
const ADDRESSES: [(Ipv4Addr, Ipv6Addr); 2] = [
    (Ipv4Addr::new(10, 99, 0, 1), Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1)),
    (Ipv4Addr::new(10, 99, 0, 2), Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2)),
];

/// Why this machine or user cannot have such hosts, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// A program is missing or cannot be started.
    #[error("{program} cannot be started: {error}; install the package iproute2")]
    Program {
        /// Its name.
        program: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The user may not create network namespaces.
    #[error("network namespaces need root: {0}; run it as root")]
    NotAllowed(String),
    /// A namespace could not be opened.
    #[error("the network namespace cannot be opened: {0}; run it outside a sandbox")]
    Open(#[from] io::Error),
    /// A command failed.
    #[error("{command}: {text}; check that the kernel has this feature")]
    Refused {
        /// The command.
        command: String,
        /// Its output.
        text: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Host {
    /// Keeps the namespace; ends when its standard input is closed.
    keeper: Child,
    namespace: File,
    ip4: Ipv4Addr,
    ip6: Ipv6Addr,
}

impl Host {
    fn new((ip4, ip6): (Ipv4Addr, Ipv6Addr)) -> Result<Self, Unavailable> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo ready; exec cat"]);
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper =
            unshare.spawn().map_err(|error| Unavailable::Program { program: "unshare", error })?;
        let mut ready = String::new();
        if let Some(out) = keeper.stdout.take() {
            BufReader::new(out).read_line(&mut ready)?;
        }
        if ready != "ready\n" {
            let output = keeper.wait_with_output()?;
            return Err(Unavailable::NotAllowed(one_line(&output.stderr)));
        }
        let namespace = File::open(format!("/proc/{}/ns/net", keeper.id()))?;
        Ok(Self { keeper, namespace, ip4, ip6 })
    }

    /// Moves the calling thread into the namespace. Sockets that it creates belong to the namespace,
    /// and so do threads and processes that it starts.
    ///
    /// # Errors
    /// The system refused.
    pub fn enter(&self) -> io::Result<()> {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.namespace.as_fd(), network)?)
    }

    /// Runs a command in the namespace. Blanks separate arguments.
    ///
    /// # Errors
    /// It failed.
    pub fn run(&self, line: &str) -> Result<(), Unavailable> {
        let namespace = format!("--net=/proc/{}/ns/net", self.keeper.id());
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(namespace).args(line.split_whitespace()).stdin(Stdio::null());
        let output =
            nsenter.output().map_err(|error| Unavailable::Program { program: "nsenter", error })?;
        if output.status.success() {
            return Ok(());
        }
        Err(Unavailable::Refused { command: line.to_owned(), text: one_line(&output.stderr) })
    }

    /// The address of the host's device.
    pub fn address(&self, v6: bool) -> IpAddr {
        if v6 { self.ip6.into() } else { self.ip4.into() }
    }

    /// Completes the device's set-up.
    fn set_up(&self) -> Result<(), Unavailable> {
        self.run("ip link set lo up")?;
        self.run(&format!("ip address add {}/24 dev {DEVICE}", self.ip4))?;
        // Without the check for duplicates, which takes a second.
        self.run(&format!("ip -6 address add {}/64 dev {DEVICE} nodad", self.ip6))?;
        self.run(&format!("ip link set {DEVICE} up"))
    }
}

/// The network namespace of a thread, to which it returns when this is dropped.
#[derive(Debug)]
pub struct Home(File);

impl Home {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn of_this_thread() -> Result<Self, Unavailable> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Without permission the thread stays where it is.
        let _ = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Two hosts that a link joins.
///
/// # Errors
/// [`Unavailable`]: the reason, for a person.
pub fn pair() -> Result<[Host; 2], Unavailable> {
    let [first, second] = ADDRESSES;
    let hosts = [Host::new(first)?, Host::new(second)?];
    let peer = hosts[1].keeper.id();
    hosts[0].run(&format!("ip link add {DEVICE} type veth peer name {DEVICE} netns {peer}"))?;
    hosts.iter().try_for_each(Host::set_up)?;
    Ok(hosts)
}

fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn hosts_reach_each_other_and_nothing_of_them_remains() {
        let hosts = match pair() {
            Ok(hosts) => hosts,
            Err(reason) => {
                // Not by a macro, whose output the test harness hides when a test passes.
                let _ = writeln!(io::stderr(), "SKIPPED: network namespaces: {reason}");
                return;
            }
        };
        let keeper = hosts[0].keeper.id();
        for v6 in [false, true] {
            let (to, from) = (hosts[1].address(v6), hosts[0].address(v6));
            let open = |host: &Host, ip: IpAddr| {
                std::thread::scope(|scope| {
                    let socket = scope.spawn(|| {
                        host.enter().expect("enters");
                        UdpSocket::bind((ip, 0)).expect("binds")
                    });
                    socket.join().expect("opens")
                })
            };
            let (server, client) = (open(&hosts[1], to), open(&hosts[0], from));
            let address = server.local_addr().expect("an address");
            client.send_to(b"hello", address).expect("sent");
            let mut buffer = [0; 16];
            let (len, source) = server.recv_from(&mut buffer).expect("received");
            assert_eq!((&buffer[..len], source.ip()), (&b"hello"[..], from));
        }
        assert!(UdpSocket::bind((hosts[0].address(false), 0)).is_err(), "not an address outside");
        let name = || std::fs::read_link("/proc/thread-self/ns/net").expect("reads");
        let before = name();
        let home = Home::of_this_thread().expect("opens");
        hosts[0].enter().expect("enters");
        assert_ne!(name(), before);
        drop(home);
        assert_eq!(name(), before);
        let text = hosts[0].run("ip link set nothing up").expect_err("no such device").to_string();
        assert!(
            text.starts_with("ip link set nothing up: ") && text.lines().count() == 1,
            "{text}"
        );
        drop(hosts);
        assert!(!std::path::Path::new(&format!("/proc/{keeper}/ns/net")).exists());
    }
}
