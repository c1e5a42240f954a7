//! `router ctl`.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use clap::Args;
use courser_kit::{Failure, out};
use courser_router::control::{Client, ClientError, LINE};

use super::stats;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  router ctl a.sock help
  router ctl a.sock nodes
  router ctl a.sock stats
  router ctl a.sock stats --json           the counters as one line, for programs
  router ctl a.sock route get 20.1.2.3
  router ctl a.sock route add 20.0.0.0/8 via b:lan0@10.0.2.9
  router ctl a.sock - < changes.txt        a request for each line

A route that is added at one node is sent to all.

Of standard input, empty lines and comments, from # to the end of the line, are skipped. The \
first error ends the command and names its line. Changes of the lines before it stay, except \
those after a `batch begin` that has no `batch commit` yet.")]
pub(crate) struct CtlArgs {
    /// Show counters as one line of JSON instead of tables, also after the request
    #[arg(long)]
    json: bool,
    /// Path of the node's control socket
    socket: PathBuf,
    /// The request; `-` reads requests from standard input, one a line
    #[arg(required = true, trailing_var_arg = true)]
    request: Vec<String>,
}

/// Why a request is not done.
enum Error {
    Client(ClientError),
    Output(io::Error),
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        Error::Client(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Client(error @ ClientError::Connect { .. }) => Failure::Usage(error.to_string()),
            Error::Client(error) => Failure::Runtime(error.to_string()),
            Error::Output(error) => error.into(),
        }
    }
}

pub(crate) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let mut client = Client::connect(&args.socket).map_err(Error::from)?;
    let mut stdout = out::stdout();
    let (words, is_last) = match &args.request[..] {
        [words @ .., last] if last == "--json" => (words, true),
        words => (words, false),
    };
    let form = if args.json || is_last { Form::Json } else { Form::Tables };
    if words == ["-"] {
        return requests(&mut client, io::stdin().lock(), form, &mut stdout);
    }
    Ok(request(&mut client, &words.join(" "), form, &mut stdout)?)
}

/// The form in which counters are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Tables,
    Json,
}

/// Makes the request of each line.
fn requests(
    client: &mut Client,
    mut input: impl BufRead,
    form: Form,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let failed = |what: String| Failure::Runtime(format!("line {number}: {what}"));
        // A longer line is no request, however long it is.
        let mut start = input.by_ref().take(LINE as u64 + 1);
        let read = start.read_until(b'\n', &mut line);
        if read.map_err(|error| failed(format!("cannot read standard input: {error}")))? == 0 {
            break;
        }
        if line.len() > LINE {
            return Err(failed(ClientError::Line.to_string()));
        }
        let text = std::str::from_utf8(&line).map_err(|_| failed("no UTF-8 text".to_owned()))?;
        match request(client, text, form, out) {
            Ok(()) | Err(Error::Client(ClientError::Empty)) => {}
            Err(Error::Client(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn request(client: &mut Client, line: &str, form: Form, out: &mut impl Write) -> Result<(), Error> {
    if form == Form::Tables && is_stats(line) {
        let answer = client.ask(line)?;
        let text = stats::text(&answer).unwrap_or(answer);
        return out.write_all(text.as_bytes()).map_err(Error::Output);
    }
    let mut written = Ok(());
    let mut print = |line: &str| {
        if written.is_ok() {
            written = writeln!(out, "{line}");
        }
    };
    client.request(line, &mut print)?;
    written.map_err(Error::Output)
}

/// Returns true for the request for counters.
fn is_stats(line: &str) -> bool {
    line.split('#').next().is_some_and(|content| content.trim() == "stats")
}
