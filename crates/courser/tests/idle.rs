//! Processor time of idle clients and servers with open connections. The only test of its process, as
//! others would be counted too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use courser::{Client, Config, Endpoints, Server, Serving};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

const ECHO: u16 = 1;
/// Answered at the end of the test.
const WAITS: u16 = 2;
const PATIENCE: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(1);
/// Most of a processor that a control thread takes, with heartbeats five times a second.
const HEARTBEATS: f64 = 0.005;

/// Processor time of each thread of this process, ns, by its number and name.
fn processor_times() -> BTreeMap<(u32, String), u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let time = |task: std::fs::DirEntry| {
        // A thread may end meanwhile.
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        let (name, times) = (read("comm")?, read("schedstat")?);
        let number = task.file_name().to_str()?.parse().ok()?;
        let ns = times.split_whitespace().next()?.parse().ok()?;
        Some(((number, name.trim().to_owned()), ns))
    };
    tasks.filter_map(time).collect()
}

/// Processor time of the threads in a window, as parts of it.
fn shares() -> BTreeMap<(u32, String), f64> {
    let (before, begun) = (processor_times(), Instant::now());
    std::thread::sleep(WINDOW);
    let (after, ns) = (processor_times(), begun.elapsed().as_nanos() as f64);
    let share = |(thread, now): ((u32, String), u64)| {
        let used = now - before.get(&thread).copied().unwrap_or_default();
        (thread, used as f64 / ns)
    };
    after.into_iter().map(share).collect()
}

/// Waits until the threads of clients, servers and runtimes take at most `most` of a processor, all
/// together, and each control thread no more than heartbeats do.
fn are_idle(what: &str, most: f64) {
    let end = Instant::now() + PATIENCE;
    loop {
        let shares = shares();
        let of = |start: &'static str| {
            let named = move |((_, name), share): (&(u32, String), &f64)| {
                name.starts_with(start).then_some(*share)
            };
            shares.iter().filter_map(named)
        };
        assert!(of("courser-client-").count() >= 4 && of("courser-server-").count() >= 4);
        let threads = ["courser-client-", "courser-server-", "courser-worker-", "tokio-"];
        let used: f64 = threads.into_iter().flat_map(of).sum();
        if used <= most && of("courser-control").all(|share| share <= HEARTBEATS) {
            return;
        }
        assert!(Instant::now() < end, "{what}: parts of a processor by thread: {shares:?}");
    }
}

/// A server whose handlers run where `place` says, with its address.
fn serve(uri: &str, wait: &Arc<Notify>, place: impl FnOnce(Server) -> Server) -> (Serving, String) {
    let mut server = place(Server::bind(uri).unwrap());
    server.on(ECHO, |mut work| async move {
        let request = work.take().unwrap();
        work.reply(request);
    });
    let wait = wait.clone();
    server.on(WAITS, move |work| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            work.reply(b"at last");
        }
    });
    let uri = server.local_uri();
    (server.serve().unwrap(), uri)
}

/// Servers of each kind.
fn servers(uri: &str, wait: &Arc<Notify>, runtime: &Runtime) -> Vec<(Serving, String)> {
    let _ = runtime;
    vec![
        serve(uri, wait, Server::on_workers),
        serve(uri, wait, |server| server.in_place(true)),
        #[cfg(feature = "tokio")]
        serve(uri, wait, |server| server.on_tokio(runtime.handle().clone())),
    ]
}

/// Calls by many tasks, small and large ones, and then one by one.
fn traffic(runtime: &Runtime, clients: &[Client]) {
    let tasks = clients.iter().flat_map(|client| {
        (0..16).map(|n| {
            let client = client.clone();
            runtime.spawn(async move {
                for bytes in [32, 32, 1 << 16, 32, 100 * n] {
                    let request = client.alloc(bytes).unwrap();
                    assert_eq!(client.call(ECHO, request).await.unwrap().len(), bytes);
                }
            })
        })
    });
    let tasks: Vec<_> = tasks.collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
        for client in clients.iter().flat_map(|client| [client; 20]) {
            client.call(ECHO, client.alloc(32).unwrap()).await.unwrap();
        }
    });
}

#[test]
fn idle_clients_and_servers_take_no_processor_time() {
    let serving = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let calling = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let wait = Arc::new(Notify::new());
    let (mut kept, mut clients, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
    for uri in ["udp://127.0.0.1:0", "shm://127.0.0.1:0"] {
        let own = Endpoints::bind(uri, 1, Config::default()).unwrap();
        for (server, uri) in servers(uri, &wait, &serving) {
            clients.push(Client::connect(&uri).wait().unwrap());
            clients.push(Client::connect_on(&own, &uri).wait().unwrap());
            kept.push(server);
        }
        endpoints.push(own);
    }
    traffic(&calling, &clients);
    are_idle("open connections", 0.005);

    // A call that waits at the server, as that of a stream without items.
    let waiting = clients.iter().map(|client| {
        let client = client.clone();
        calling.spawn(async move { client.call(WAITS, client.alloc(8).unwrap()).await })
    });
    let waiting: Vec<_> = waiting.collect();
    traffic(&calling, &clients);
    are_idle("calls that wait", 0.02);
    while waiting.iter().any(|call| !call.is_finished()) {
        wait.notify_waiters();
        std::thread::sleep(Duration::from_millis(1));
    }
    for call in waiting {
        assert_eq!(*calling.block_on(call).unwrap().unwrap(), *b"at last");
    }
    are_idle("after all calls", 0.005);
    drop((clients, endpoints, kept));
}
