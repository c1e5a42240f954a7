//! Worker handlers: a long call runs on a worker thread, and short calls are answered meanwhile.
//! Client and server share one thread here; the workers have their own.
//!
//! `cargo run --release -p courser --example worker`

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use courser::{Nexus, Work};

const PING: u16 = 1; // empty -> empty, on the server's thread
const COUNT_PRIMES: u16 = 2; // u32 -> u32, on a worker thread

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut server = nexus.endpoint()?;
    server.on(PING, |cx, _| cx.reply(""));
    // All workers share the closure, so it is `Fn`, `Send` and `Sync`. Each call gets its own
    // request.
    server.on_worker(COUNT_PRIMES, |work: Work| {
        let Some(bytes) = work.first_chunk() else { return work.reject() };
        let primes = (2..u32::from_le_bytes(*bytes)).filter(|&n| is_prime(n)).count() as u32;
        work.reply(primes.to_le_bytes());
    })?;

    let mut client = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
    let session = client.connect(&nexus.local_uri())?;
    let answer = Rc::new(RefCell::new(None));
    let seen = answer.clone();
    let mut request = client.alloc(4)?;
    request.copy_from_slice(&400_000_u32.to_le_bytes());
    client.call(session, COUNT_PRIMES, request, move |_cx, done| {
        *seen.borrow_mut() = Some(done.result.map(|r| r.to_vec()));
    })?;

    let (pings, waits) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    while answer.borrow().is_none() {
        if !waits.replace(true) {
            let (pings, waits) = (pings.clone(), waits.clone());
            client.call(session, PING, client.alloc(0)?, move |_cx, done| {
                pings.set(pings.get() + u32::from(done.result.is_ok()));
                waits.set(false);
            })?;
        }
        let _ = (client.poll(), server.poll());
    }
    let primes = answer.take().expect("it was answered")?;
    let primes = u32::from_le_bytes(*primes.first_chunk().ok_or("a short answer")?);
    println!("{primes} primes below 400000; pings answered meanwhile: {}", pings.get());
    println!("{:?}", nexus.worker_stats());
    Ok(())
}

fn is_prime(n: u32) -> bool {
    (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}
