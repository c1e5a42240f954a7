//! A process that forks after it has made a nexus: its child must not send with the same cookies and
//! frame numbers.

use std::sync::mpsc;
use std::time::Duration;

use courser::{BindError, Client, Config, Nexus, Rpc, RunError, SessionError, SessionId};

const ECHO: u16 = 1;

/// Starts an echo server in a thread.
fn server(scheme: &str) -> String {
    let (tell, told) = mpsc::channel();
    let bind = format!("{scheme}://127.0.0.1:0");
    std::thread::spawn(move || {
        let nexus = Nexus::bind(&bind).expect("binds");
        let mut rpc = nexus.endpoint().expect("opens");
        rpc.on(ECHO, |cx, request| cx.reply(request));
        tell.send(nexus.local_uri()).expect("told");
        rpc.run().expect("runs");
    });
    told.recv().expect("ready")
}

fn call(rpc: &mut Rpc, session: SessionId) -> bool {
    let request = rpc.alloc(32).expect("memory");
    rpc.call_wait(session, ECHO, request, Some(Duration::from_secs(10))).is_ok()
}

/// Uses the copies of a child, which exits with 0 if every use is refused.
fn child(nexus: Nexus, mut rpc: Rpc, session: SessionId, server: &str) -> i32 {
    let refused = [
        matches!(rpc.connect(server), Err(SessionError::Forked)),
        matches!(rpc.run_for(Duration::from_millis(1)), Err(RunError::Forked)),
        matches!(nexus.endpoint(), Err(BindError::Forked)),
        !rpc.poll(),
        !call(&mut rpc, session),
    ];
    drop(rpc);
    drop(nexus);
    // A nexus of its own has its own identity.
    let scheme = server.split("://").next().unwrap_or_default();
    let Ok(own) = Nexus::bind_with(&format!("{scheme}://127.0.0.1:0"), Config::default()) else {
        return 70;
    };
    let Ok(mut rpc) = own.endpoint() else { return 71 };
    let Ok(session) = rpc.connect(server) else { return 72 };
    if rpc.wait_connected(session).is_err() || !call(&mut rpc, session) {
        return 73;
    }
    refused.iter().position(|refused| !refused).map_or(0, |at| 1 + at as i32)
}

#[test]
fn a_forked_process_may_not_use_its_parents_endpoints() {
    for scheme in ["udp", "shm"] {
        let server = server(scheme);
        let nexus = Nexus::bind(&format!("{scheme}://127.0.0.1:0")).expect("binds");
        let mut rpc = nexus.endpoint().expect("opens");
        let session = rpc.connect(&server).expect("a session");
        rpc.wait_connected(session).expect("connected");
        assert!(call(&mut rpc, session));
        // SAFETY: the child only uses Courser and leaves by `_exit`. The other threads of this
        // process hold no lock of the allocator while this one waits for their answers: they sleep.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = child(nexus, rpc, session, &server);
            // SAFETY: ends the child without the exit handlers of its parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: waits for the child; the pointer is to a local variable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "{scheme}");
        // The parent's session and names are intact.
        assert!(call(&mut rpc, session), "{scheme}");
        let again = rpc.connect(&server).expect("another session");
        rpc.wait_connected(again).expect("connected");
        let own = nexus.local_uri();
        let other = Nexus::bind(&own).err();
        assert!(other.is_some(), "{own} is still bound");
        assert!(call(&mut rpc, again));
    }
}

fn client_calls(client: &Client) -> bool {
    let Ok(request) = client.alloc(32) else { return false };
    client.call(ECHO, request).deadline(Duration::from_secs(10)).wait().is_ok()
}

#[test]
fn clients_of_a_forked_process_share_an_endpoint_of_their_own() {
    let server = server("udp");
    let client = Client::connect(&server).wait().expect("connected");
    assert!(client_calls(&client));
    // SAFETY: as above.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let own = [0; 2].map(|_| Client::connect(&server).wait());
        let works = own.iter().all(|own| own.as_ref().is_ok_and(client_calls));
        let refused = !client_calls(&client);
        drop((client, own));
        // SAFETY: as above.
        unsafe { libc::_exit(if works && refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    let another = Client::connect(&server).wait().expect("connected");
    assert!(client_calls(&client) && client_calls(&another));
}
