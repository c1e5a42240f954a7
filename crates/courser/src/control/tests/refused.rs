//! A peer that refuses the connection and closes it before the greeting is written.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;

use courser_proto::{ControlError, ControlRefusal};

use super::scripted::{Bytes, Script, driver};
use crate::control::event::Event;
use crate::control::mailbox::Mailbox;
use crate::control::network::Ready;
use crate::control::{Command, Mail};
use crate::error::DialError;
use crate::platform::Platform;

/// Each connection is refused and closed as soon as this side writes to it.
struct Refusing;

impl Script for Refusing {
    type Bytes = Closed;

    fn connect(&mut self, _: SocketAddr) -> io::Result<Closed> {
        Ok(Closed::default())
    }
}

/// The bytes that can be read.
#[derive(Default, Debug)]
struct Closed(io::Cursor<Vec<u8>>);

impl Bytes for Closed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.0.get_ref().is_empty() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.0.read(to),
        }
    }

    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        self.0 = io::Cursor::new(ControlRefusal::Exhausted.to_bytes().to_vec());
        Err(ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_refusal_is_read_after_a_write_that_failed() {
    let (mut driver, commands) = driver(Refusing);
    let mailbox = Mailbox::new(&Platform::System, 1).unwrap();
    let register = Command::Register { index: 1, id: 9, mailbox: mailbox.clone(), accepts: false };
    commands.send(Event::Command(register)).unwrap();
    let dial = Command::Dial { index: 1, ticket: 5, host: "server".into(), port: 7 };
    commands.send(Event::Command(dial)).unwrap();
    driver.pass(&mut Vec::new());
    let n = *driver.conns.keys().next().expect("a connection");
    driver.pass(&mut vec![Ready::Conn { n, writable: true }]);

    let mut mail = Vec::new();
    mailbox.take(&mut mail);
    let Some(Mail::Dialed { ticket: 5, result: Err(error) }) = mail.pop() else {
        panic!("{mail:?}");
    };
    let refused = ControlError::Refused(ControlRefusal::Exhausted);
    assert!(matches!(&error, DialError::Handshake { cause, .. } if *cause == refused), "{error:?}");
}
