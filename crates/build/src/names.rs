//! Names that settings are for.

use crate::error::Error;
use crate::places::Places;

/// Services and methods that a setting is for.
#[derive(Default, Debug)]
pub(crate) struct Names {
    setting: &'static str,
    all: Vec<String>,
}

impl Names {
    pub(crate) fn new(setting: &'static str) -> Self {
        Names { setting, all: Vec::new() }
    }

    /// Adds a service, a method, or all (`.`).
    pub(crate) fn add(&mut self, name: String) {
        self.all.push(match name.as_str() {
            "." => name,
            other => other.trim_start_matches('.').to_owned(),
        });
    }

    /// Returns whether a method has the setting: by its own name, that of its service, or as all have.
    pub(crate) fn contain(&self, service: &str, method: &str) -> bool {
        self.all.iter().any(|name| name == "." || name == service || name == method)
    }

    /// Refuses names that nothing has.
    pub(crate) fn check(&self, places: &Places) -> Result<(), Error> {
        let unused = self.all.iter().find(|name| *name != "." && !places.contains(name));
        match unused {
            None => Ok(()),
            Some(name) => Err(Error::Unused { setting: self.setting, path: name.clone() }),
        }
    }
}
