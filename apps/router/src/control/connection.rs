//! A client of the control socket, as the server has it.

use std::io::{self, Read, Write};

use ipnet::IpNet;

use super::parse::{self, Batch, HELP, Line};
use super::{LINE, Request, Response};
use crate::config::Config;
use crate::routes::{Change, Origin};

/// Requests wait while this many bytes of answers are not read.
const OUTPUT: usize = 64 << 10;

/// Applies requests.
pub(super) type Apply<'a> = dyn FnMut(Request) -> Response + 'a;

/// A list of which a part is sent.
type Rest = (Option<IpNet>, (IpNet, Origin));

/// A connection, its unfinished line, and answers that the client has not read.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    /// Bytes of lines that are not handled yet: at most one line.
    input: Vec<u8>,
    output: Vec<u8>,
    batch: Option<Batch>,
    rest: Option<Rest>,
    /// The client sends no more, or may not.
    is_ended: bool,
    /// Whether the stream has bytes to read, as far as is known.
    is_readable: bool,
    is_writable: bool,
}

/// What follows for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// More can be done now.
    Again,
    /// The client is to send or read first.
    Wait,
    /// It is closed.
    Close,
}

impl<S: Read + Write> Connection<S> {
    pub(super) fn new(stream: S) -> Connection<S> {
        Connection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            batch: None,
            rest: None,
            is_ended: false,
            is_readable: true,
            is_writable: true,
        }
    }

    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Notes that the stream can be read or written again.
    pub(super) fn ready(&mut self, is_readable: bool, is_writable: bool) {
        self.is_readable |= is_readable;
        self.is_writable |= is_writable;
    }

    /// Handles a request, writes or reads once. Answers are written when no request is there, so
    /// that those of many requests are one write.
    pub(super) fn step(&mut self, config: &Config, apply: &mut Apply<'_>) -> Next {
        let has_room = self.output.len() < OUTPUT;
        if has_room && let Some((within, after)) = self.rest.take() {
            self.request(Request::Routes { within, after: Some(after) }, apply);
            return Next::Again;
        }
        if has_room && let Some(line) = self.take_line() {
            self.line(&line, config, apply);
            return Next::Again;
        }
        let result = if self.is_writable && !self.output.is_empty() {
            self.write()
        } else if self.is_ended && self.output.is_empty() {
            return Next::Close;
        } else if self.is_readable && has_room && !self.is_ended {
            self.read()
        } else {
            return Next::Wait;
        };
        if result.is_ok() { Next::Again } else { Next::Close }
    }

    fn write(&mut self) -> io::Result<()> {
        match self.stream.write(&self.output) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                self.output.drain(..written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_writable = false;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads up to the length of a line. The input has no whole line.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; LINE];
        let room = LINE - self.input.len();
        match self.stream.read(&mut buffer[..room]) {
            Ok(0) => self.end(),
            Ok(length) => self.input.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if self.input.len() == LINE && !self.input.contains(&b'\n') {
            self.answer(Response::Error(format!("a line has at most {LINE} bytes")));
            self.input.clear();
            self.is_ended = true;
        }
        Ok(())
    }

    /// The client sends no more. Half a request must not be carried out as if it were a whole one.
    fn end(&mut self) {
        self.is_ended = true;
        if !parse::content(&String::from_utf8_lossy(&self.input)).is_empty() {
            let reason = "the last line has no line feed at its end: nothing is done for it";
            self.answer(Response::Error(reason.to_owned()));
        }
        self.input.clear();
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let rest = self.input.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.input, rest);
        line.truncate(end);
        Some(line)
    }

    fn line(&mut self, line: &[u8], config: &Config, apply: &mut Apply<'_>) {
        let parsed = match std::str::from_utf8(line) {
            Ok(text) => parse::line(config, text).map_err(|error| error.to_string()),
            Err(_) => Err("a line is UTF-8 text".to_owned()),
        };
        match (parsed, &mut self.batch) {
            (Ok(Line::Empty), _) => {}
            (Ok(Line::Help), _) => self.answer(Response::Done(HELP.to_owned())),
            (Ok(Line::Abort), batch) => {
                *batch = None;
                self.answer(Response::Done(String::new()));
            }
            (Ok(Line::Begin), batch @ None) => {
                *batch = Some(Batch::default());
                self.answer(Response::Done(String::new()));
            }
            (Ok(Line::Commit), batch) => match batch.take().map(Batch::commit) {
                Some(Ok(changes)) => self.request(Request::Change(changes), apply),
                Some(Err(error)) => self.answer(Response::Error(error)),
                None => self.answer(Response::Error("there is no batch: begin one".to_owned())),
            },
            (Ok(Line::Change(change)), None) => self.request(Request::Change(vec![change]), apply),
            (Ok(Line::Request(request)), None) => self.request(request, apply),
            (Err(error), None) => self.answer(Response::Error(error)),
            (line, Some(batch)) => {
                let added = batch.add(change_of(line));
                self.answer(added.map_or_else(Response::Error, |()| Response::Done(String::new())));
            }
        }
    }

    fn request(&mut self, request: Request, apply: &mut Apply<'_>) {
        let within = match &request {
            Request::Routes { within, .. } => *within,
            _ => None,
        };
        let response = apply(request);
        if let Response::Part(_, after) = &response {
            self.rest = Some((within, *after));
        }
        self.answer(response);
    }

    fn answer(&mut self, response: Response) {
        match response {
            Response::Part(text, _) => self.text(&text),
            Response::Done(text) => {
                self.text(&text);
                self.output.extend_from_slice(b"ok\n");
            }
            Response::Error(reason) => {
                let reason = reason.replace(['\n', '\r'], " ");
                self.output.extend_from_slice(format!("error: {reason}\n").as_bytes());
            }
        }
    }

    /// Adds lines, of which none is mistaken for the last one of an answer.
    fn text(&mut self, text: &str) {
        for line in text.lines() {
            if line == "ok" || line.starts_with("error: ") {
                self.output.push(b' ');
            }
            self.output.extend_from_slice(line.as_bytes());
            self.output.push(b'\n');
        }
    }
}

/// The change of a line in a batch, which has changes only.
fn change_of(line: Result<Line, String>) -> Result<Change, String> {
    match line? {
        Line::Change(change) => Ok(change),
        _ => Err("a batch has routes only: commit or abort it first".to_owned()),
    }
}
