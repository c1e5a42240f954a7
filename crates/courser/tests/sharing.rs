//! Threads and descriptors of a process with many clients. The only test of its process, as others
//! would change the counts.

use std::time::{Duration, Instant};

use courser::{Client, Config, Endpoints, Server};

const ECHO: u16 = 1;
const LOOPBACK: &str = "udp://127.0.0.1:0";
const CLIENTS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads and open descriptors of this process.
fn used() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|dir| std::fs::read_dir(dir).unwrap().count())
}

fn server() -> courser::Serving {
    let mut server = Server::bind(LOOPBACK).unwrap();
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    URIS.lock().unwrap().push(server.local_uri());
    server.serve().unwrap()
}

static URIS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

fn call(client: &Client) {
    let answer = client.call(ECHO, client.alloc(8).unwrap()).wait().unwrap();
    assert_eq!(answer.len(), 8);
}

/// Waits until no more is used than `before`.
fn all_is_freed(before: [usize; 2]) {
    let end = Instant::now() + PATIENCE;
    while used().iter().zip(before).any(|(now, before)| *now > before) {
        assert!(Instant::now() < end, "{:?} threads and descriptors, {before:?} before", used());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Times that the thread of the clients' endpoint has begun to sleep.
fn sleeps() -> u64 {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut threads = tasks.filter(|task| read(task.join("comm")).starts_with("courser-client"));
    let status = read(threads.next().expect("the thread").join("status"));
    assert!(threads.next().is_none());
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The thread sleeps when no client calls: it looks for them for some 10 ms after the last call.
fn idle_clients_sleep() {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(300));
        if sleeps() - before < 10 {
            return;
        }
        assert!(Instant::now() < end, "{} sleeps in 300 ms", sleeps() - before);
    }
}

#[test]
fn clients_of_a_process_share_a_thread_and_its_descriptors() {
    let _servers = [server(), server(), server()];
    let uris = URIS.lock().unwrap().clone();
    let before = used();
    let connect = |n: usize| Client::connect(&uris[n % uris.len()]).wait().unwrap();
    let clients: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || connect(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    clients.iter().for_each(call);
    idle_clients_sleep();
    let [threads, descriptors] = used();
    assert!(threads <= before[0] + 2, "{threads} threads, {} before", before[0]);
    // Both sides are counted: a connection to each server has two.
    assert!(descriptors <= before[1] + 16, "{descriptors} descriptors, {} before", before[1]);

    // Other settings, and endpoints that are given, are apart.
    let other = Config { slots: 8, ..Config::default() };
    let apart = Client::connect_with(&uris[0], other.clone()).wait().unwrap();
    let same = Client::connect_with(&uris[1], other).wait().unwrap();
    let endpoints = Endpoints::bind(LOOPBACK, 1, Config::default()).unwrap();
    let given = Client::connect_on(&endpoints, &uris[0]).wait().unwrap();
    [&apart, &same, &given].into_iter().for_each(call);
    assert_eq!(used()[0], threads + 4, "two groups with an endpoint and a control thread each");
    drop((apart, same, given, endpoints));

    // All ends with the last client, and begins anew with the next one.
    drop(clients);
    all_is_freed(before);
    for n in 0..20 {
        call(&connect(n));
    }
    all_is_freed(before);
}
