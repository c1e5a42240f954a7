//! `router ctl`.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use clap::Args;
use courser_bench::program::{Failure, out};
use courser_router::control::{Client, ClientError};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  router ctl a.sock help
  router ctl a.sock nodes
  router ctl a.sock stats
  router ctl a.sock route get 20.1.2.3
  router ctl a.sock route add 20.0.0.0/8 via b:lan0@10.0.2.9
  router ctl a.sock - < changes.txt        a request for each line

A route that is added at one node is sent to all.")]
pub(crate) struct CtlArgs {
    /// Path of the node's control socket
    socket: PathBuf,
    /// The request; `-` reads requests from standard input, one a line
    #[arg(required = true, trailing_var_arg = true)]
    request: Vec<String>,
}

struct Error(ClientError);

impl From<Error> for Failure {
    fn from(Error(error): Error) -> Self {
        match error {
            ClientError::Connect { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Runtime(error.to_string()),
        }
    }
}

pub(crate) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let mut client = Client::connect(&args.socket).map_err(Error)?;
    let mut stdout = out::stdout();
    if args.request == ["-"] {
        for line in std::io::stdin().lock().lines() {
            request(&mut client, &line?, &mut stdout)?;
        }
        return Ok(());
    }
    request(&mut client, &args.request.join(" "), &mut stdout)
}

fn request(client: &mut Client, line: &str, out: &mut impl Write) -> Result<(), Failure> {
    let mut written = Ok(());
    let mut print = |line: &str| {
        if written.is_ok() {
            written = writeln!(out, "{line}");
        }
    };
    client.request(line, &mut print).map_err(Error)?;
    Ok(written?)
}
