//! The client's side of the control socket, for commands that wait for their answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::LINE;
use super::parse::content;

/// Bytes of a line of an answer at most.
const ANSWER: u64 = 1 << 20;
/// Requests without an answer at most. Their answers fit into the buffers of the socket.
const WINDOW: usize = 64;
/// A node that is alive answers earlier.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request has failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No node listens there.
    #[error("{path}: {source}: is the node running?", path = path.display())]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("the node does not answer: {0}")]
    Io(#[from] io::Error),
    /// The node refused it.
    #[error("{0}")]
    Refused(String),
    /// The request is no line that a node accepts.
    #[error("a request is one line of at most {max} bytes", max = LINE - 1)]
    Line,
    /// There is no request: nothing, or a comment, which a node does not answer.
    #[error("an empty line or a comment is no request: `help` lists them")]
    Empty,
}

/// A connection to a running node.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the control socket of a node.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let connect = |source| ClientError::Connect { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(connect)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends a request, calls `each` for each line of its answer, and returns when it is complete.
    pub fn request(&mut self, line: &str, each: impl FnMut(&str)) -> Result<(), ClientError> {
        self.send(line)?;
        self.answer(each)
    }

    /// Sends a request and returns the lines of its answer.
    pub fn ask(&mut self, line: &str) -> Result<String, ClientError> {
        let mut text = String::new();
        self.request(line, |line| {
            text += line;
            text.push('\n');
        })?;
        Ok(text)
    }

    /// Sends many requests, several at once, and ignores the lines of their answers. Calls `failed`
    /// with the position of each that the node refuses, and its reason.
    pub fn send_all<'a>(
        &mut self,
        lines: impl IntoIterator<Item = &'a str>,
        mut failed: impl FnMut(usize, String),
    ) -> Result<(), ClientError> {
        let mut answered = 0;
        let mut receive = |client: &mut Client| {
            match client.answer(|_| {}) {
                Err(ClientError::Refused(reason)) => failed(answered, reason),
                result => result?,
            }
            answered += 1;
            Ok::<(), ClientError>(())
        };
        let mut waiting = 0;
        for line in lines {
            if waiting == WINDOW {
                receive(self)?;
                waiting -= 1;
            }
            self.send(line)?;
            waiting += 1;
        }
        (0..waiting).try_for_each(|_| receive(self))
    }

    fn send(&mut self, line: &str) -> Result<(), ClientError> {
        let content = content(line);
        if content.is_empty() {
            return Err(ClientError::Empty);
        }
        if content.contains('\n') || content.len() >= LINE {
            return Err(ClientError::Line);
        }
        Ok(self.stream.get_mut().write_all(format!("{content}\n").as_bytes())?)
    }

    fn answer(&mut self, mut each: impl FnMut(&str)) -> Result<(), ClientError> {
        let mut line = String::new();
        loop {
            line.clear();
            (&mut self.stream).take(ANSWER).read_line(&mut line)?;
            let Some(text) = line.strip_suffix('\n') else {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            };
            match text.strip_prefix("error: ") {
                Some(reason) => return Err(ClientError::Refused(reason.to_owned())),
                None if text == "ok" => return Ok(()),
                None => each(text),
            }
        }
    }
}
