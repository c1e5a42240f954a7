//! The smallest program: a server and a client, each with its thread, and one call.
//!
//! `cargo run --release -p courser --example hello`

use std::thread;
use std::time::Duration;

use courser::{EndpointHandle, Nexus};

const HELLO: u16 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let uri = nexus.local_uri();
    let (ready, server_ready) = std::sync::mpsc::channel::<EndpointHandle>();
    let server = thread::spawn(move || -> Result<(), String> {
        let mut rpc = nexus.endpoint().map_err(|e| e.to_string())?;
        rpc.on(HELLO, |cx, req| {
            let name = String::from_utf8_lossy(&req).into_owned();
            cx.reply(format!("hello, {name}"));
        });
        ready.send(rpc.handle()).map_err(|e| e.to_string())?;
        rpc.run().map_err(|e| e.to_string())
    });
    let server_waker = server_ready.recv()?;

    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(&uri)?;
    let mut request = rpc.alloc(5)?;
    request.copy_from_slice(b"world");
    let answered = rpc.call_wait(session, HELLO, request, Duration::from_secs(5))?;
    println!("{}", String::from_utf8_lossy(&answered.response));

    server_waker.stop();
    server.join().expect("the server thread")?;
    Ok(())
}
