//! `router overload`, as a program. Rates and latencies are not checked: they depend on the machine.
//! That a flood is forwarded at the best rate is a test of the simulated router.

use std::process::Command;

use courser_router::netns::{Cluster, Shape};
use serde_json::Value;

#[test]
fn each_load_is_offered_by_both_ways_and_arrives_in_order() {
    if let Err(error) = Cluster::build(Shape::Mesh, 1) {
        println!("SKIPPED: {error}");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_router"))
        .args(["overload", "--quick", "--json", "-"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON only");
    assert_eq!(
        (&report["bench"], &report["transport"]),
        (&"router-overload".into(), &"udp".into())
    );
    assert!(report["environment"]["kernel"].is_string());
    assert!(report["config"]["capacity_pps"].as_f64() > Some(0.0), "{report:#}");
    let paths = report["results"]["paths"].as_array().expect("the router, the kernel");
    let names: Vec<_> = paths.iter().map(|path| path["path"].as_str()).collect();
    assert_eq!(names, [Some("router"), Some("kernel")]);
    for path in paths {
        let loads = path["loads"].as_array().expect("one for each load");
        let wanted: Vec<_> = loads.iter().map(|load| load["load"].as_f64()).collect();
        assert_eq!(wanted, [Some(0.5), Some(1.0), Some(2.0), Some(4.0)]);
        for load in loads {
            let number = |key: &str| load[key].as_u64().expect(key);
            assert!(number("received") <= number("sent") && number("received") > 0, "{path:#}");
            assert_eq!(number("out_of_order"), 0, "{path:#}");
            assert!(load["delivered_pps"].as_f64() <= load["offered_pps"].as_f64(), "{path:#}");
        }
        let ratio = path["ratio_to_best_at_largest_load"].as_f64().expect("a ratio");
        assert!(ratio > 0.0 && ratio <= 1.0, "{path:#}");
        assert!(path["request_idle"]["latency_p50_ns"].as_f64() > Some(0.0), "{path:#}");
    }
}
