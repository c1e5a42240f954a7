//! Every screen of the long benchmarks, the simulator and the soak test fits 80 columns.

use crate::common::bench::alone;
use crate::common::{assert_narrow, fits, run, stdout};

#[test]
fn help_of_every_command_fits_and_is_wrapped_evenly() {
    crate::common::help::assert_all_fit(30);
}

#[test]
fn long_benchmarks_fit() {
    let _alone = alone();
    let shown = "--quick --anyway --pairs 1";
    let frames = "--frame-size 1KiB,2KiB,4KiB,8KiB,16KiB,32KiB,64KiB";
    let sweep = fits(&format!("bench sweep {shown} --transport mem {frames} --in-flight 1,1024"));
    assert!(sweep.contains("64 KiB") && sweep.contains("at worst"), "{sweep}");
    fits(&format!("bench factors {shown} --transport udp"));
    fits(&format!("bench credits {shown} --transport mem --size 64KiB"));
    fits(&format!("bench txqueue {shown} --transport mem"));
    fits(&format!("bench sessions {shown} --transport shm --sessions 2,40"));
    fits(&format!("bench threads {shown} --transport mem"));
    let points = "--size 64,1500 --batch 1,32,256";
    let gather = fits(&format!("bench gather {shown} --transport mem {points}"));
    assert!(gather.contains("latency of one way"), "{gather}");
    fits(&format!("bench workers {shown}"));
}

#[test]
fn experiments_of_the_erpc_paper_fit() {
    for line in [
        "e76 --nodes 5 --warm-up 50us --time 100us",
        "incast --senders 2 --warm-up 1us --time 20us",
        "incast --senders 100,999 --control none,timely-patched,default --size 64KiB --warm-up 1ms --time 1ms",
        "fan-in --servers 20,100 --rounds 1",
        "buffers --senders 4 --static-bytes 20000 --time 1ms",
        "credits --max-credits 3",
        "bandwidth --sizes 512,1KiB --time 1ms",
        "response-rtt --max-packets 2",
        "background --senders 3 --warm-up 100us --time 100us --recovery go-back-n,default",
        "join-leave --senders 3 --every 200us",
        "first-burst --senders 3 --rounds 1",
        "uplink --flows 2 --time 100us",
        "reroute --control default --senders 1",
        "slow-handler",
        "uncongested --nodes 4 --time 200us",
        "operating-range --gbps 10 --rtt 1us,100us --frames 1072,8KiB --senders 2 --rtts 1",
        "speed --rounds 1 --window 10ms",
    ] {
        fits(&format!("sim run {line}"));
    }
}

#[test]
fn experiments_of_loss_recovery_fit() {
    let loss = "loss --warm-up 1ms --time 1ms --request 1MiB";
    for line in [
        &format!("{loss} --loss 0,1e-3"),
        &format!("{loss} --reorder 10%:48us --loss 1e-3"),
        &format!("{loss} --rto-sweep=100us,200us"),
        &format!("{loss} --loss 1e-3 --seeds 2 --control none,dcqcn"),
        "fct --hosts 20 --load 0.3 --flows 20",
        "fct --hosts 20 --load 0.9 --flows 60 --lanes 2 --seeds 2 --control none,dcqcn",
        "bits-pool --connections 2 --loss 2% --time 10ms",
        "lost-call --calls 2000",
    ] {
        fits(&format!("sim {line}"));
    }
}

#[test]
fn the_swarm_and_a_replay_fit() {
    let swarm = fits("sim swarm --seeds 3");
    assert!(swarm.contains("violations 0"), "{swarm}");
    for seed in 0..3 {
        fits(&format!("sim replay --seed {seed}"));
    }
    // Lines of the trace have no limit; the others fit.
    let text = stdout(&run("sim replay --seed 3 --trace --last 5"));
    let others: Vec<_> = text.lines().filter(|line| !line.contains(" cookie ")).collect();
    assert_narrow("replay", &others.join("\n"));
}

#[test]
fn the_soak_test_fits() {
    let text = fits("soak kill-client --times 1 --load 300 --seed 7");
    assert!(text.contains("faults") && text.contains("violations  0"), "{text}");
}
