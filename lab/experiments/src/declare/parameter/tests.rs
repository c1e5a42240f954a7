//! Options, JSON and ranges that follow from declarations.

use clap::Command;
use courser::Control;

use super::*;

parameters! {
    struct Link {
        /// Decides all random choices
        seed: u64 = 1, count(0..=u64::MAX);
        /// Congestion controls
        control: Control = Control::default(), name::<Control>().option("control").each("none,default");
    }
}

parameters! {
    /// Settings of a test.
    struct Sample {
        /// Links
        link: Link = Link { seed: 7, ..Link::default() }, Nested;
        /// Numbers of senders, and more of them
        /// in a second line
        senders: u32 = 2, count(1..=100).option("senders").each("1,2");
        /// Time of it
        time_ns: u64 = 10_000, time(1_000..=2_000_000).option("time");
        /// Sizes
        sizes: Vec<usize> = vec![1_024, 1_000], bytes(1..=8 << 20).option("sizes");
        /// Rate
        rate_bps: u64 = 25_000_000_000, rate(1..=u64::MAX).option("gbps");
        /// Share
        loss_ppm: u32 = 15_000, chance(0..=1_000_000).option("loss");
        /// A switch
        quick: bool = false, flag().option("quick");
        /// Most credits
        credits: Option<u32> = None, count(1..=9).option("max-credits");
        /// Steps
        steps: Vec<u64> = (1..=40).collect(), count(1..=99).option("steps");
        /// No parameter
        other: i32 = -1;
    }
}

fn of(line: &str) -> Vec<Sample> {
    let options: Vec<Arg> = Sample::parameters().iter().filter_map(Parameter::argument).collect();
    let words = format!("sample {line}");
    let command = Command::new("sample").args(options);
    of_arguments(&command.try_get_matches_from(words.split_whitespace()).expect("a line"))
}

#[test]
fn every_combination_of_options_with_several_values_is_a_run() {
    let all = of("");
    let pairs: Vec<_> = all.iter().map(|s| (s.link.control.name(), s.senders)).collect();
    assert_eq!(pairs, [("none", 1), ("none", 2), ("default", 1), ("default", 2)]);
    assert_eq!(all[3], Sample::default(), "other options have the defaults of the settings");
}

#[test]
fn options_are_read_in_their_units() {
    let line = "--control swift --senders 3 --time 2ms --sizes 2KiB,7 --gbps 100 --loss 0.1% \
         --quick --max-credits 4";
    let [seen] = &of(line)[..] else { panic!("one run") };
    let expected = Sample {
        link: Link { control: Control::Swift, seed: 7 },
        senders: 3,
        time_ns: 2_000_000,
        sizes: vec![2_048, 7],
        rate_bps: 100_000_000_000,
        loss_ppm: 1_000,
        quick: true,
        credits: Some(4),
        steps: Sample::default().steps,
        other: -1,
    };
    assert_eq!(*seen, expected);
}

#[test]
fn help_and_defaults_are_those_of_the_declaration() {
    let all = Sample::parameters();
    let option = |name: &str| {
        let options = all.iter().filter_map(Parameter::argument);
        options.into_iter().find(|o| o.get_id() == name).expect("an option")
    };
    let default = |name: &str| {
        let option = option(name);
        option.get_default_values().first().map(|v| v.to_string_lossy().into_owned())
    };
    assert_eq!(
        option("senders").get_help().expect("help").to_string(),
        "Numbers of senders, and more of them in a second line"
    );
    let steps = option("steps");
    assert!(steps.is_hide_default_value_set(), "a long list is not wrapped");
    assert_eq!(steps.get_help().expect("help").to_string(), "Steps. Default 1 to 40");
    let shown = ["time", "sizes", "gbps", "loss", "max-credits"].map(default);
    let expected = [Some("10us"), Some("1KiB,1000"), Some("25"), Some("1.5%"), None];
    assert_eq!(shown, expected.map(|text| text.map(str::to_owned)));
}

#[test]
fn json_has_the_parameters_of_the_whole_and_results_those_that_differ() {
    let seen = json!(Sample::default());
    let expected = json!({
        "seed": 7, "control": "default", "senders": 2, "time_ns": 10_000, "sizes": [1_024, 1_000],
        "rate_bps": 25_000_000_000_u64, "loss_ppm": 15_000, "quick": false, "credits": null,
        "steps": Sample::default().steps,
    });
    assert_eq!(seen, expected);
    let differ = Value::Object(reported(&Sample::default()));
    assert_eq!(differ, json!({ "control": "default", "default": true, "senders": 2 }));
}

#[test]
fn a_parameter_out_of_its_range_is_refused_by_name() {
    let refused = |spoil: fn(&mut Sample)| {
        let mut settings = Sample::default();
        spoil(&mut settings);
        check(&settings).expect_err("out of range").to_string()
    };
    assert_eq!(refused(|s| s.senders = 0), "senders = 0 is out of range; use 1 to 100");
    assert_eq!(refused(|s| s.time_ns = 999), "time_ns = 999ns is out of range; use 1us to 2ms");
    assert!(refused(|s| s.sizes.push(0)).starts_with("sizes = 0 is out of range"));
    assert!(refused(|s| s.loss_ppm = 2_000_000).ends_with("use at most 100%"));
    assert!(refused(|s| s.credits = Some(10)).starts_with("credits = 10"));
    check(&Sample::default()).expect("in range");
}
