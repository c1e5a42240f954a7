//! Every screen fits a terminal of 80 columns, and the commands that a screen prints work.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::bench::alone;
use crate::common::{Server, assert_narrow, error_line, fits, json_of, run, stderr, stdout};

#[test]
fn help_of_every_command_fits_and_is_wrapped_evenly() {
    crate::common::help::assert_all_fit(10);
}

#[test]
fn screens_of_servers_and_their_clients_fit() {
    for bind in ["udp://127.0.0.1:0 --threads 3", "udp://0.0.0.0:0", "shm://127.0.0.1:0"] {
        let server = Server::start(&format!("serve --bind {bind}"));
        assert_narrow(bind, &server.said);
        fits(&format!("ping {} --count 2 --interval 1ms --timeout 20s", server.uri));
        let text = fits(&format!("stat {} --count 2 --interval 100ms", server.uri));
        assert!(text.contains("rollbacks") && text.contains("pool waits"), "{text}");
    }
}

#[test]
fn results_fit() {
    let _alone = alone();
    let shown = "--quick --anyway --pairs 1 --transport mem";
    fits(&format!("bench latency {shown}"));
    fits(&format!("bench rate {shown} --batch 1,3"));
    fits(&format!(
        "bench bandwidth {shown} --size 64KiB --fault loss=1e-3 --recovery go-back-n,melo"
    ));
    let text = fits("quickstart --quick --anyway").replace('\n', " ");
    assert!(text.contains("depend on the cores ("), "{text}");
    assert!(text.contains("on the generation of the CPU ("), "{text}");
}

#[test]
fn commands_that_a_server_on_shared_memory_prints_work() {
    let _alone = alone();
    let server = Server::start("serve --bind shm://127.0.0.1:0");
    assert!(server.uri.starts_with("shm://127.0.0.1:"), "{}", server.said);
    assert!(!server.said.contains("UDP "), "no port to open: {}", server.said);
    let commands: Vec<_> = server.said.lines().filter_map(|l| l.split("courser ").nth(1)).collect();
    for (name, flags) in [
        ("ping", "--count 2 --timeout 20s"),
        ("stat", "--once"),
        ("bench", "--quick --pairs 2 --anyway"),
    ] {
        let printed = commands.iter().find(|command| command.starts_with(name));
        let printed = printed.unwrap_or_else(|| panic!("{name}: {}", server.said));
        fits(&format!("{printed} {flags}"));
    }
}

#[test]
fn a_ping_states_that_waking_is_included() {
    let server = Server::local();
    let slow = fits(&format!("ping {} --count 2 --interval 5ms --timeout 20s", server.uri));
    assert!(slow.contains("Both sides sleep between calls"), "{slow}");
    let fast = fits(&format!("ping {} --count 2 --interval 0s --timeout 20s", server.uri));
    assert!(!fast.contains("sleep"), "{fast}");
}

#[test]
fn figures_of_a_busy_machine_are_not_shown_as_results() {
    let _alone = alone();
    let bench = "bench latency --quick --pairs 30 --transport mem";
    let server = Server::local();
    let connected = format!("bench latency --quick --pairs 30 --connect {}", server.uri);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..2 * cpus {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut measured = Vec::new();
        for bench in [bench, &connected] {
            let share = json_of(&format!("{bench} --json -"))["config"]["cpu_wait_share"].as_f64();
            measured.push((share, run(bench), run(&format!("{bench} --anyway"))));
        }
        let quickstart = run("quickstart --quick");
        stop.store(true, Ordering::Relaxed);
        // With a single CPU, or a kernel that does not count, the share is unknown.
        if measured[0].0.is_none() {
            return;
        }
        for (share, refused, shown) in measured {
            assert!(share > Some(0.1), "{share:?}");
            assert_eq!(refused.status.code(), Some(1));
            assert!(error_line(&refused).contains("the machine was busy"), "{}", stderr(&refused));
            assert_eq!(stdout(&refused), "");
            assert!(stdout(&shown).contains("latency p50"), "{}", stderr(&shown));
        }
        assert_eq!(quickstart.status.code(), Some(0));
        let text = stdout(&quickstart);
        let (marked, table) = (text.find("are not results"), text.find("round trip"));
        assert!(marked.is_some() && marked < table, "{text}");
    });
}
