//! `router ctl SOCKET -`, as a program.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::{LINE, Node, Origin, start};

/// The command with this text as its standard input.
fn requests(node: &mut Node, text: impl AsRef<[u8]> + Send) -> Output {
    control(node, &["-"], text)
}

/// The command with these arguments after the socket.
fn control(node: &mut Node, arguments: &[&str], text: impl AsRef<[u8]> + Send) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.arg("ctl").arg(node.directory.socket()).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = start(&mut command);
    let mut stdin = process.stdin.take().expect("a pipe");
    node.beside(move || {
        // It does not read what follows an error.
        let _ = stdin.write_all(text.as_ref());
        drop(stdin);
        process.wait_with_output().expect("it ends")
    })
}

fn announced(node: &Node) -> usize {
    node.routes.announced(Origin::Node(0), None).count()
}

#[test]
fn empty_lines_and_comments_of_a_file_are_skipped() {
    let mut node = Node::new("file");
    let text = "# routes\n\n  \t\nroute add 192.0.2.0/25 via a:lan0 # the first\n\
                \r\n#\nbatch begin\n# in a batch\n\nroute add 192.0.2.128/25 via b:lan0\n\
                batch commit\nroutes 192.0.2.0/24";
    let output = requests(&mut node, text);
    assert!(output.status.success(), "{output:?}");
    let listed = "192.0.2.0/25 via a:lan0 # node a\n192.0.2.128/25 via b:lan0 # node a\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), listed);
    assert!(requests(&mut node, "").status.success());
    assert!(requests(&mut node, "#").status.success());
}

#[test]
fn an_error_in_a_file_names_its_line() {
    let mut node = Node::new("line");
    let add = "# first\nroute replace 192.0.2.0/25 via a:lan0\n\n";
    let longest = format!("{}stats\n", " ".repeat(LINE - 6));
    assert!(requests(&mut node, longest).status.success());
    for (line, error) in [
        ("rout x", "line 4: \"rout x\" is no request: `help` lists them"),
        ("route del 192.0.2.128/25", "line 4: 192.0.2.128/25 is not announced here"),
        (
            "batch begin\nroute del 192.0.2.0/25\n# x\nroute del 192.0.2.128/25\nbatch commit",
            "line 8: nothing is changed: line 2 of the batch: 192.0.2.128/25 is not announced",
        ),
        ("batch begin\nstats", "line 5: a batch has routes only"),
        (&" ".repeat(LINE), "line 4: a request is one line of at most 4095 bytes"),
        (&"#".repeat(1 << 20), "line 4: a request is one line of at most 4095 bytes"),
    ] {
        let output = requests(&mut node, format!("{add}{line}\nroute del 192.0.2.0/25\n"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(error), "{text}\n{error}");
        assert_eq!((output.status.code(), announced(&node)), (Some(1), 1), "{text}");
    }
    let output = requests(&mut node, b"\n\xff\n");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("line 2: no UTF-8 text"),
        "{output:?}"
    );
}

#[test]
fn counters_are_tables_and_with_an_option_one_line_of_json() {
    let mut node = Node::new("stats");
    node.stats = r#"{"node":"a","uptime_ns":61000000000,"received":7,"drops":{"no_route":2}}"#;
    let line = format!("{}\n", node.stats);
    let show = |node: &mut Node, arguments: &[&str], text: &str| {
        let output = control(node, arguments, text);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    for (arguments, text) in [
        (&["stats", "--json"][..], ""),
        (&["--json", "stats"], ""),
        (&["-", "--json"], "stats"),
        (&["--json", "-"], " stats # counters\n"),
    ] {
        assert_eq!(show(&mut node, arguments, text), line, "{arguments:?}");
    }
    for (arguments, text) in [(&["stats"][..], ""), (&["-"], "# counters\n stats # of a")] {
        let tables = show(&mut node, arguments, text);
        let rows = tables.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let rows: Vec<_> = rows.filter(|row| !row.contains('─') && !row.is_empty()).collect();
        let expected = [
            "node a, for 1m 1s",
            "counter number",
            "received 7",
            "dropped because of packets",
            "no route 2",
        ];
        assert_eq!(rows, expected, "{tables}");
        assert!(tables.lines().all(|line| line.chars().count() <= 80), "{tables}");
    }
    // It is no option of other requests.
    assert_eq!(control(&mut node, &["nodes", "--yaml"], "").status.code(), Some(1));
}
