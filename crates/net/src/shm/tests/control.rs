//! Sockets of control connections, and names that processes leave.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use super::*;
use crate::shm::ControlListener;

const V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 77);

#[test]
fn control_connections_have_ports_of_their_own() {
    let room = Room::new();
    let _frames = ShmTransport::bind(&ShmConfig { port: 77, ..room.cfg() }).unwrap();
    let listener = ControlListener::bind(&room.0, V4).unwrap();
    let six = "[::1]:77".parse().unwrap();
    let _six = ControlListener::bind(&room.0, six).unwrap();
    assert_eq!(listener.local_addr(), V4);
    assert!(matches!(ControlListener::bind(&room.0, V4), Err(ShmError::InUse(77))));
    listener.accept().unwrap(); // the test for a listener
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let _client = ControlListener::connect(&room.0, V4).unwrap();
    listener.accept().unwrap();
    drop(listener);
    let refused = ControlListener::connect(&room.0, V4).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let any = ControlListener::bind(&room.0, SocketAddr::new(V4.ip(), 0)).unwrap();
    assert_ne!(any.local_addr().port(), 0);
}

#[test]
fn names_of_killed_processes_are_removed_and_others_stay() {
    let room = Room::new();
    let live = ControlListener::bind(&room.0, V4).unwrap();
    for name in ["60000", "5.control", "6.control6", "77.control6"] {
        drop(UnixListener::bind(room.0.join(name)).unwrap());
    }
    std::fs::write(room.0.join("notes.txt"), "not a socket").unwrap();
    let endpoint = room.endpoint();
    let mut names: Vec<_> = std::fs::read_dir(&room.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected = ["77.control", "lock", "notes.txt"].map(str::to_owned).to_vec();
    expected.push(endpoint.local.port.to_string());
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(live.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "left in peace");
    // The name of a dead listener is bound again.
    drop(UnixListener::bind(room.0.join("9.control")).unwrap());
    ControlListener::bind(&room.0, SocketAddr::new(V4.ip(), 9)).unwrap();
}

/// Needs root, to become another user in one thread.
#[test]
fn processes_of_other_users_are_refused_in_both_directions() {
    use rustix::process::{Uid, geteuid};
    if !geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let room = Room::new();
    let listener = ControlListener::bind(&room.0, V4).unwrap();
    // Even if the directory were open, the user of each side is checked.
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    };
    open(&room.0);
    open(&room.0.join("77.control"));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let stranger = Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
            let error = ControlListener::connect(&room.0, V4).unwrap_err();
            std::os::unix::net::UnixStream::connect(room.0.join("77.control")).unwrap();
            error
        });
        let error = other.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    });
    for _ in 0..2 {
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}
