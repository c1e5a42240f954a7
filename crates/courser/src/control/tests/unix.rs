//! Control connections over Unix sockets.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use courser_net::ControlSockets;

use super::support::*;
use crate::control::{Control, Limits};
use crate::error::BindError;
use crate::error::DialError;
use crate::platform::{Platform, random_u64};

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        Dir(std::env::temp_dir().join(format!("courser-unix-{:x}", random_u64())))
    }

    fn sockets(&self) -> ControlSockets {
        ControlSockets::Unix(self.0.clone())
    }

    fn node(&self, bind: &str) -> Node {
        Node::start_over(&self.sockets(), bind, Limits::default())
    }
}

/// An address whose port the kernel assigns to no socket of other tests.
fn fixed() -> String {
    format!("127.0.0.1:{}", 20_000 + random_u64() % 10_000)
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn messages_are_exchanged_and_no_tcp_port_is_open() {
    let dir = Dir::new();
    let (server, client) = (dir.node(&fixed()), dir.node("127.0.0.1:0"));
    let s = server.register(3, true);
    let c = client.register(7, false);
    assert!(TcpStream::connect(server.at_loopback()).is_err());

    let dialed = client.dial(&c, "127.0.0.1", server.port).unwrap();
    assert_eq!(dialed.remote, server.at_loopback());
    assert!(dialed.same_host);
    let ask = connect(c.me(), Some(3), 11);
    client.send(dialed.control, ask.clone());
    let (back, remote, local, msg) = s.msg();
    assert_eq!((msg, remote, local), (ask, dialed.local.ip(), dialed.remote.ip()));
    let yes = accept(c.me(), s.me(), 5);
    server.send(back, yes.clone());
    assert_eq!(c.msg().3, yes);

    let port = server.port;
    drop(server);
    assert_eq!(c.lost().0, dialed.control);
    let error = client.dial(&c, "127.0.0.1", port).unwrap_err();
    assert!(error.to_string().contains("nothing listens"), "{error}");
}

#[test]
fn addresses_of_another_family_and_ports_in_use_are_refused() {
    let dir = Dir::new();
    let node = dir.node(&fixed());
    let e = node.register(0, false);
    let error = node.dial(&e, "[::1]", node.port).unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error:?}");
    let again = |sockets: &ControlSockets| {
        Control::start(&Platform::System, sockets, node.at_loopback(), Limits::default()).err()
    };
    let error = again(&dir.sockets()).unwrap();
    assert!(matches!(&error, BindError::Transport(e) if e.is_in_use()), "{error:?}");
    // The ports of TCP, and of the other family, are others.
    assert!(again(&ControlSockets::Tcp).is_none());
    let six = dir.node(&format!("[::1]:{}", node.port));
    let s = six.register(1, false);
    assert!(six.dial(&s, "::1", six.port).unwrap().remote.is_ipv6());
}

#[test]
fn directories_of_others_are_refused() {
    let dir = Dir::new();
    drop(dir.node("127.0.0.1:0"));
    std::fs::set_permissions(&dir.0, PermissionsExt::from_mode(0o755)).unwrap();
    let bind = "127.0.0.1:0".parse().unwrap();
    let started = Control::start(&Platform::System, &dir.sockets(), bind, Limits::default());
    let error = started.err().unwrap().to_string();
    assert!(error.contains("open to other users"), "{error}");
}
