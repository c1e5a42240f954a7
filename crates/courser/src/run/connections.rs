//! The connects of an endpoint that are under way, and its connected sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use courser_buf::Addr;
use courser_proto::{ConnectRequest, EndpointRef, Integrity, SessionId};

use crate::config::Config;
use crate::control::{DEFAULT_CONNECTIONS, Mail};
use crate::platform::Platform;

/// A session that is connecting.
pub(super) struct Dialing {
    pub(super) ticket: u64,
    pub(super) session: SessionId,
    pub(super) to: Option<u16>,
    pub(super) server: String,
    pub(super) request: ConnectRequest,
    pub(super) deadline_ns: u64,
    /// It has got more time because this thread was late.
    pub(super) excused: bool,
    /// When the connect request was sent, ns.
    pub(super) sent_ns: u64,
    /// The request was sent, and its answer is outstanding.
    pub(super) asked: bool,
    /// Answers that named a peer which is gone here.
    pub(super) repeats: u8,
    /// The server endpoint that gave such an answer last. The connect waits until that endpoint has
    /// answered all others, and then sends its request again.
    pub(super) held_by: Option<u16>,
    /// The number of the open control connection, with the remote and the local address.
    pub(super) control: Option<(u64, SocketAddr, SocketAddr)>,
}

impl Dialing {
    pub(super) fn is_on(&self, control: u64) -> bool {
        self.control.is_some_and(|(c, ..)| c == control)
    }

    /// The connection and the server endpoint whose answers to others the request waits for.
    pub(super) fn held_by(&self) -> Option<(u64, u16)> {
        let (control, ..) = self.control.filter(|_| !self.asked)?;
        Some((control, self.held_by?))
    }

    /// Returns whether the request can reach that server endpoint.
    fn is_for(&self, (control, endpoint): (u64, u16)) -> bool {
        self.is_on(control) && self.to.is_none_or(|to| to == endpoint)
    }
}

/// A connected session: its server endpoint and datapath address.
pub(super) struct Link {
    pub(super) session: SessionId,
    pub(super) control: u64,
    pub(super) to: EndpointRef,
    pub(super) datapath: Addr,
}

/// Sessions of this endpoint as a client, by their number.
pub(crate) struct Connections {
    pub(super) dialing: Vec<Dialing>,
    pub(super) connected: BTreeMap<u32, Link>,
    pub(super) next_ticket: u64,
    pub(super) timeout: Duration,
    /// `Config::integrity`.
    pub(super) integrity: Option<Integrity>,
    /// `Config::credits`.
    pub(super) credits: Option<u32>,
    /// The smallest pool of credits that a session has begun with, if that is less than `credits`.
    pub(super) smallest_pool: Option<u32>,
    /// The limit of open files is too low for the settings of the nexus.
    open_files_warning: Option<String>,
    /// Messages of the control thread that are being handled.
    pub(super) mail: Vec<Mail>,
}

impl Connections {
    pub(crate) fn new(config: &Config, platform: &Platform) -> Self {
        Connections {
            dialing: Vec::new(),
            connected: BTreeMap::new(),
            next_ticket: 0,
            timeout: config.connect_timeout,
            integrity: config.integrity,
            credits: config.credits,
            smallest_pool: None,
            open_files_warning: open_files_warning(config, platform),
            mail: Vec::new(),
        }
    }

    /// `Config::connect_timeout`.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Warnings of settings that do not hold.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.credits_warning().into_iter().chain(self.open_files_warning.clone())
    }

    /// The warning that `Config::credits` is not what sessions have.
    fn credits_warning(&self) -> Option<String> {
        let (credits, pool) = (self.credits?, self.smallest_pool?);
        Some(format!(
            "Config::credits is {credits}, and a session got {pool}: its server allows no more, or \
             the receive queues had no room; lower it, or raise Config::credits of the server and \
             Config::socket_buffer of both sides"
        ))
    }

    /// The least protection of frames within a host, or between two.
    pub(super) fn integrity(&self, same_host: bool) -> Integrity {
        let default = if same_host { Integrity::None } else { Integrity::Crc };
        self.integrity.unwrap_or(default)
    }

    /// The server endpoint for whose answers a new request to `to` has to wait.
    pub(super) fn held(&self, control: u64, to: Option<u16>) -> Option<u16> {
        let held = self.dialing.iter().filter_map(Dialing::held_by);
        let mut on = held.filter(|held| held.0 == control).map(|(_, endpoint)| endpoint);
        on.find(|&endpoint| to.is_none_or(|to| to == endpoint))
    }

    /// The server endpoints that requests wait for, and that have no answer outstanding.
    pub(super) fn released(&self) -> Vec<(u64, u16)> {
        let mut held: Vec<_> = self.dialing.iter().filter_map(Dialing::held_by).collect();
        held.sort_unstable();
        held.dedup();
        held.retain(|&held| !self.dialing.iter().any(|d| d.asked && d.is_for(held)));
        held
    }

    /// Returns whether a connect is under way, so that the event loop must check its deadline.
    #[inline]
    pub(crate) fn is_dialing(&self) -> bool {
        !self.dialing.is_empty()
    }

    /// The earliest deadline of a connect.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.dialing.iter().map(|d| d.deadline_ns).min()
    }
}

/// A warning when connections that a setting allows exceed the limit of open files. The default is
/// more than most programs need, so it causes none.
fn open_files_warning(config: &Config, platform: &Platform) -> Option<String> {
    let wanted = config.max_connections;
    if platform.is_virtual() || wanted <= DEFAULT_CONNECTIONS {
        return None;
    }
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    (files < wanted as u64).then(|| {
        format!(
            "Config::max_connections is {wanted}, but this process may open {files} files; raise \
             the limit (`ulimit -n`)"
        )
    })
}
