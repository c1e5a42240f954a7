//! The endpoints that the clients of a process share by default (ADR 46).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use courser_net::{ThisProcess, Uri};

use super::endpoints::{By, Group, User};
use crate::config::Config;
use crate::error::BindError;
use crate::error::ClientError;
use crate::rpc::nexus::Nexus;

/// The endpoints of one process. A forked process, where their threads are missing and the lock may
/// have been held, has a registry of its own.
struct Registry {
    process: ThisProcess,
    /// By local address, network namespace and settings. A group ends with its last client.
    groups: Mutex<BTreeMap<String, Weak<Group>>>,
    forked: OnceLock<Box<Registry>>,
}

impl Registry {
    fn new() -> Self {
        let (groups, forked) = (Mutex::default(), OnceLock::new());
        Registry { process: ThisProcess::new(), groups, forked }
    }

    fn of_this_process() -> &'static Registry {
        static FIRST: OnceLock<Registry> = OnceLock::new();
        let mut registry = FIRST.get_or_init(Registry::new);
        while registry.process.was_forked() {
            registry = registry.forked.get_or_init(|| Box::new(Registry::new()));
        }
        registry
    }
}

/// The endpoint for clients of a server with these settings.
pub(super) fn user_for(uri: &str, config: Config) -> Result<User, ClientError> {
    let server = uri.parse::<Uri>().map_err(BindError::from)?;
    let bind = server.bind_for_client().to_string();
    // Sockets belong to the namespace of the thread that makes them.
    let network = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    let key = format!("{bind} {} {config:?}", network.display());
    let registry = Registry::of_this_process();
    // Only a failed allocation panics under this lock, and it leaves the map intact. The lock is held
    // until the endpoint is made, so that clients that connect at the same time share it.
    let mut groups = registry.groups.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(user) = groups.get(&key).and_then(Weak::upgrade).and_then(User::join) {
        return Ok(user);
    }
    groups.retain(|_, group| group.strong_count() > 0);
    let user = User::start(Nexus::bind_with(&bind, config)?, 1, By::Callers)?;
    groups.insert(key, Arc::downgrade(user.group()));
    Ok(user)
}
