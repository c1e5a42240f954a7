//! Failover: a client writes to the first of two servers, which is killed with two writes in
//! flight. The error of each write determines the action at the second server.
//!
//! `cargo run --release -p courser --example failover`
//!
//! Each write must be executed once. Both servers append to one file, which stands for the
//! replication of a real database, so the second server can check writes of the first.

use std::cell::RefCell;
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use courser::{CallError, Config, Executed, Nexus, Rpc, SessionId};

const WRITE: u16 = 1; // the number of a write -> nothing
const IS_WRITTEN: u16 = 2; // the number of a write -> 1 or 0

type Error = Box<dyn std::error::Error>;
/// Results of calls, by write number.
type Ends = Rc<RefCell<Vec<(u64, Result<Vec<u8>, CallError>)>>>;

/// A server process. The first one is killed before it has answered write 3.
fn serve(log: &str, is_first: bool) -> Result<(), Error> {
    let nexus = Nexus::bind("udp://127.0.0.1:0")?;
    let mut rpc = nexus.endpoint()?;
    let mut file = File::options().append(true).open(log)?;
    rpc.on(WRITE, move |cx, req| {
        if writeln!(file, "{}", number(&req)).is_err() {
            return cx.reject();
        }
        match is_first && number(&req) == 3 {
            true => std::mem::forget(cx.defer()), // written, and never answered
            false => cx.reply([]),
        }
    });
    let log = log.to_owned();
    rpc.on(IS_WRITTEN, move |cx, req| cx.reply([u8::from(is_written(&log, number(&req)))]));
    println!("{}", nexus.local_uri());
    // It exits with the program that started it.
    let handle = rpc.handle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.stop();
    });
    Ok(rpc.run()?)
}

fn start(log: &Path, which: &str) -> Result<(Child, String), Error> {
    let mut server = Command::new(std::env::current_exe()?)
        .arg(log)
        .arg(which)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut uri = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut uri)?;
    Ok((server, uri.trim().to_owned()))
}

fn call(rpc: &mut Rpc, session: SessionId, kind: u16, id: u64, ends: &Ends) -> Result<(), Error> {
    let mut request = rpc.alloc(8)?;
    request.copy_from_slice(&id.to_le_bytes());
    let ends = ends.clone();
    rpc.call(session, kind, request, move |_, done| {
        ends.borrow_mut().push((id, done.result.map(|r| r.to_vec())));
    })?;
    Ok(())
}

/// Makes one call and returns its answer.
fn ask(rpc: &mut Rpc, session: SessionId, kind: u16, id: u64) -> Result<Vec<u8>, Error> {
    let ends = Ends::default();
    call(rpc, session, kind, id, &ends)?;
    rpc.run_until(|| !ends.borrow().is_empty())?;
    let (_, answer) = ends.borrow_mut().pop().ok_or("stopped")?;
    Ok(answer?)
}

fn client(log: &Path) -> Result<(), Error> {
    let (mut first, first_uri) = start(log, "first")?;
    let (mut second, second_uri) = start(log, "second")?;
    // One slot: the second write is queued behind the first. A silent server fails after half a
    // second, a killed process earlier.
    let failure_timeout = Duration::from_millis(500);
    let config = Config { slots: 1, failure_timeout, ..Config::default() };
    let mut rpc = Nexus::bind_with("udp://127.0.0.1:0", config)?.endpoint()?;

    let session = rpc.connect(&first_uri)?;
    for id in [1, 2] {
        ask(&mut rpc, session, WRITE, id)?;
        println!("write {id}: done by the first server");
    }
    let ends = Ends::default();
    for id in [3, 4] {
        call(&mut rpc, session, WRITE, id, &ends)?;
    }
    while !is_written(log, 3) {
        rpc.run_for(Duration::from_millis(1))?;
    }
    first.kill()?;
    first.wait()?;
    rpc.run_until(|| ends.borrow().len() == 2)?;
    if let Some(e) = rpc.session_error(session) {
        println!("the first server is killed: {e}");
    }

    let session = rpc.connect(&second_uri)?;
    ends.borrow_mut().sort_unstable_by_key(|(id, _)| *id);
    for (id, end) in ends.take() {
        let Err(e) = end else { continue };
        println!("write {id}: {e}");
        match e.executed() {
            // The handler has not run and will not run.
            Executed::Never => drop(ask(&mut rpc, session, WRITE, id)?),
            // A second write would be wrong if the first was executed, so check first.
            Executed::Maybe if ask(&mut rpc, session, IS_WRITTEN, id)? == [1] => {
                println!("write {id}: was done, and is not repeated");
                continue;
            }
            Executed::Maybe => drop(ask(&mut rpc, session, WRITE, id)?),
            // The handler has run; only its answer is missing.
            Executed::Yes => continue,
        }
        println!("write {id}: done by the second server");
    }
    println!("written: {}", read_to_string(log)?.split_whitespace().collect::<Vec<_>>().join(" "));
    drop(second.stdin.take());
    second.wait()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [log, which] = &args[..] {
        return serve(log, which == "first");
    }
    let log = std::env::temp_dir().join(format!("courser-failover-{}", std::process::id()));
    File::create(&log)?;
    let result = client(&log);
    std::fs::remove_file(&log)?;
    result
}

fn is_written(log: impl AsRef<Path>, id: u64) -> bool {
    let text = read_to_string(log).unwrap_or_default();
    text.lines().any(|line| line.parse() == Ok(id))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}
