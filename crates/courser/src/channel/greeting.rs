//! Services of a client: its sessions ask their servers for them, which may have been replaced.
//!
//! Services of checked typed clients are asked for on each new session before any call, so that no call
//! waits for it. The others are asked for by the first call of the service on a session.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::method::{Numbers, ServiceInfo};
use crate::counts::Callers;

/// A service of a typed client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub struct Greeting {
    pub(crate) info: &'static ServiceInfo,
    /// A server without the service, or with another codec of it, is an error when the client is made.
    pub(crate) checked: bool,
}

/// The services of a client, by their numbers, which begin at 1. The second part states that new
/// sessions ask for the service before they are used.
#[derive(Clone, Default, Debug)]
pub(crate) struct Greetings {
    list: Arc<Mutex<Vec<(Greeting, bool)>>>,
    /// The counters of their methods.
    pub(crate) callers: Callers,
}

impl Greetings {
    pub(crate) fn new(callers: Callers) -> Self {
        Greetings { list: Arc::default(), callers }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Greeting, bool)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a service.
    pub(crate) fn add(&self, new: Greeting) -> Option<NonZeroU16> {
        let mut all = self.lock();
        let at = all.iter().position(|(known, _)| *known == new).unwrap_or(all.len());
        let number = u16::try_from(at + 1).ok().and_then(NonZeroU16::new)?;
        if at == all.len() {
            all.push((new, false));
        }
        Some(number)
    }

    pub(crate) fn get(&self, service: NonZeroU16) -> Option<Greeting> {
        self.lock().get(place(service)).map(|(greeting, _)| *greeting)
    }

    /// A server has had the service: from now on new sessions ask for it first.
    pub(crate) fn confirm(&self, service: NonZeroU16) {
        if let Some((greeting, first)) = self.lock().get_mut(place(service)) {
            *first = greeting.checked;
        }
    }

    /// The first service at this place or behind it that new sessions ask for.
    pub(crate) fn next(&self, from: usize) -> Option<NonZeroU16> {
        let at = self.lock().iter().skip(from).position(|(_, first)| *first)? + from;
        u16::try_from(at + 1).ok().and_then(NonZeroU16::new)
    }
}

/// The place of a service in lists.
pub(crate) fn place(service: NonZeroU16) -> usize {
    usize::from(service.get()) - 1
}

/// The services of a session.
#[derive(Default, Debug)]
pub(crate) struct Services(Vec<Service>);

/// A service of a session.
#[derive(Clone, Default, Debug)]
pub(crate) enum Service {
    #[default]
    Unknown,
    /// The server is being asked.
    Asked,
    Known(Numbers),
    /// The server has another version, or does not have it; the text says so.
    Refused(Arc<str>),
}

impl Services {
    #[inline]
    pub(crate) fn get(&self, service: NonZeroU16) -> &Service {
        self.0.get(place(service)).unwrap_or(&Service::Unknown)
    }

    pub(crate) fn set(&mut self, service: NonZeroU16, to: Service) {
        let at = place(service);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Service::default);
        }
        self.0[at] = to;
    }
}
