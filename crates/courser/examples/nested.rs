//! Nested calls: a front end answers after its back end has answered. The reply handle outlives the
//! handler; nothing blocks and no lock is used.
//!
//! `cargo run --release -p courser --example nested`

use std::cell::Cell;
use std::rc::Rc;

use courser::Nexus;

const SQUARE: u16 = 1; // u64 -> u64, at the back end
const NEXT_SQUARE: u16 = 2; // u64 -> u64, at the front end

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three endpoints, polled by one thread.
    let (back_nexus, front_nexus) =
        (Nexus::bind("udp://127.0.0.1:0")?, Nexus::bind("udp://127.0.0.1:0")?);
    let (mut back, mut front) = (back_nexus.endpoint()?, front_nexus.endpoint()?);
    let mut client = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;

    back.on(SQUARE, |cx, req| {
        let n = number(&req);
        cx.reply((n * n).to_le_bytes());
    });
    let to_back = front.connect(&back_nexus.local_uri())?;
    front.on(NEXT_SQUARE, move |cx, req| {
        let Some(handle) = cx.defer() else { return };
        // Without memory, dropping the handle answers with an error.
        let Ok(mut nested) = cx.alloc(8) else { return };
        nested.copy_from_slice(&(number(&req) + 1).to_le_bytes());
        let sent = cx.call(to_back, SQUARE, nested, move |cx, done| {
            if let Ok(response) = done.result {
                let _ = cx.reply_to(handle, response);
            }
        });
        if let Err(rejected) = sent {
            eprintln!("{rejected}");
        }
    });

    let session = client.connect(&front_nexus.local_uri())?;
    let answer = Rc::new(Cell::new(None));
    let seen = answer.clone();
    let mut request = client.alloc(8)?;
    request.copy_from_slice(&11_u64.to_le_bytes());
    client.call(session, NEXT_SQUARE, request, move |_cx, done| {
        seen.set(Some(done.result.map(|r| number(&r))));
    })?;
    while answer.get().is_none() {
        let _ = (client.poll(), front.poll(), back.poll());
    }
    println!("the square after 11 is {}", answer.get().expect("it was answered")?);
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}
