//! Large messages: 8 MiB in each direction, without a copy in the application. The call returns its
//! buffers, so the second round allocates nothing.
//!
//! `cargo run --release -p courser --example large`

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use courser::{MsgBuf, Nexus};

const REVERSE: u16 = 1;
const SIZE: usize = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut server = nexus.endpoint()?;
    server.on(REVERSE, |cx, req| match req.take(cx) {
        Ok(mut message) => {
            message.reverse();
            cx.reply(message); // moved: the response is sent from this buffer
        }
        Err(e) => eprintln!("{e}"),
    });

    let mut client = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
    let session = client.connect(&nexus.local_uri())?;
    let mut request = client.alloc(SIZE)?;
    for (i, byte) in request.iter_mut().enumerate() {
        *byte = i as u8;
    }
    for round in 1..=3 {
        let start = Instant::now();
        let back: Rc<RefCell<Option<MsgBuf>>> = Rc::default();
        let slot = back.clone();
        client.call(session, REVERSE, request, move |_cx, done| {
            match &done.result {
                Ok(response) => assert!(response.iter().rev().eq(done.request.iter())),
                Err(e) => eprintln!("the call failed: {e}"),
            }
            *slot.borrow_mut() = Some(done.request);
        })?;
        while back.borrow().is_none() {
            let _ = (client.poll(), server.poll());
        }
        println!("round {round}: {SIZE} bytes there and back in {:.1?}", start.elapsed());
        request = back.take().expect("the call returned the buffer");
    }
    Ok(())
}
