//! Network namespaces for nodes, so that the network of one can be cut: each has a virtual Ethernet link
//! to a bridge in a namespace of its own, which this program enters too. All of them end with their
//! keepers, which end with this program. Needs root, and the programs `unshare`, `nsenter` and `ip`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use courser_kit::Failure;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A process that keeps a namespace until its input is closed.
struct Keeper(Child);

/// The namespaces of nodes, and that of the bridge between them.
pub(super) struct Apart {
    bridge: Keeper,
    nodes: Vec<Keeper>,
}

fn unavailable(text: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!(
        "network namespaces are not available: {text}; run this as root, with the packages util-linux \
         and iproute2"
    ))
}

impl Keeper {
    fn new() -> Result<Keeper, Failure> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo ready; exec cat"]);
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = Keeper(unshare.spawn().map_err(unavailable)?);
        let mut line = String::new();
        if let Some(out) = keeper.0.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(unavailable)?;
        }
        if line == "ready\n" { Ok(keeper) } else { Err(unavailable("not permitted")) }
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// A command in the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    /// Runs a command of the program `ip`.
    fn ip(&self, line: &str) -> Result<(), Failure> {
        let mut command = self.command("ip");
        command.args(line.split(' ')).stdin(Stdio::null());
        let output = command.output().map_err(unavailable)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        Err(unavailable(format!("ip {line}: {text}")))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The address of a node, from 0.
fn address(at: usize) -> String {
    format!("10.99.0.{}", at + 1)
}

impl Apart {
    /// Namespaces for nodes. The calling thread, and threads and programs that it starts, are at the
    /// bridge from then on.
    pub(super) fn new(count: usize) -> Result<Apart, Failure> {
        let bridge = Keeper::new()?;
        bridge.ip("link set lo up")?;
        bridge.ip("link add br0 type bridge")?;
        bridge.ip("address add 10.99.0.254/24 dev br0")?;
        bridge.ip("link set br0 up")?;
        let mut nodes = Vec::new();
        for at in 0..count {
            let node = Keeper::new()?;
            let pid = node.0.id();
            bridge.ip(&format!("link add node{at} type veth peer name eth0 netns {pid}"))?;
            bridge.ip(&format!("link set node{at} master br0"))?;
            bridge.ip(&format!("link set node{at} up"))?;
            node.ip("link set lo up")?;
            node.ip(&format!("address add {}/24 dev eth0", address(at)))?;
            node.ip("link set eth0 up")?;
            nodes.push(node);
        }
        let namespace = File::open(bridge.path()).map_err(unavailable)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(unavailable)?;
        Ok(Apart { bridge, nodes })
    }

    /// The address of a node.
    pub(super) fn uri(&self, at: usize) -> String {
        format!("udp://{}:31850", address(at))
    }

    /// A command in the namespace of a node.
    pub(super) fn command(&self, at: usize, program: &str) -> Command {
        self.nodes[at].command(program)
    }

    /// Cuts the link of a node, or joins it again.
    pub(super) fn set_link(&self, at: usize, is_up: bool) -> Result<(), Failure> {
        let state = if is_up { "up" } else { "down" };
        self.bridge.ip(&format!("link set node{at} {state}"))
    }

    /// Cuts a node off from the other nodes, but not from clients, or joins it again.
    pub(super) fn set_peers(&self, at: usize, is_up: bool) -> Result<(), Failure> {
        let change = if is_up { "del" } else { "add" };
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            for (from, to) in [(at, other), (other, at)] {
                self.nodes[from].ip(&format!("route {change} blackhole {}/32", address(to)))?;
            }
        }
        Ok(())
    }
}
