//! Places of services and methods in their files.

use std::collections::{BTreeMap, BTreeSet};

use heck::ToUpperCamelCase;
use protox::prost_reflect::prost_types::FileDescriptorSet;

/// Numbers of fields, of which the paths of places consist: services of a file, methods of a service.
const SERVICES: i32 = 6;
const METHODS: i32 = 2;

/// Services, methods and types of all files.
#[derive(Default)]
pub(crate) struct Places {
    /// The file, line and column of each, by its full name: `package.Service.Method`.
    places: BTreeMap<String, String>,
    /// Messages and enums outside of others: the package, and the name of the Rust type.
    types: BTreeSet<(String, String)>,
    /// The services of each package, by their Rust names.
    services: BTreeMap<String, Vec<String>>,
}

impl Places {
    pub(crate) fn new(set: &FileDescriptorSet) -> Self {
        let mut all = Places::default();
        for file in &set.file {
            let package = file.package();
            let messages = file.message_type.iter().map(|message| message.name());
            let enums = file.enum_type.iter().map(|of| of.name());
            let rust = |name: &str| (package.to_owned(), name.to_upper_camel_case());
            all.types.extend(messages.chain(enums).map(rust));
            let services = file.service.iter().map(|service| service.name().to_upper_camel_case());
            all.services.entry(package.to_owned()).or_default().extend(services);
            let lines: BTreeMap<&[i32], &[i32]> = (file.source_code_info.iter())
                .flat_map(|info| &info.location)
                .map(|location| (&location.path[..], &location.span[..]))
                .collect();
            let place = |path: &[i32]| match lines.get(path) {
                Some([line, column, ..]) => format!("{}:{}:{}", file.name(), line + 1, column + 1),
                _ => file.name().to_owned(),
            };
            for (i, service) in (0..).zip(&file.service) {
                let name = joined(package, service.name());
                for (j, method) in (0..).zip(&service.method) {
                    let place = place(&[SERVICES, i, METHODS, j]);
                    all.places.insert(joined(&name, method.name()), place);
                }
                all.places.insert(name, place(&[SERVICES, i]));
            }
        }
        all
    }

    /// The file, line and column of a service or a method.
    pub(crate) fn of(&self, name: &str) -> &str {
        self.places.get(name).map_or("", |place| place)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Returns whether a package has a message or an enum whose Rust type has this name.
    pub(crate) fn has_type(&self, package: &str, rust_name: &str) -> bool {
        self.types.contains(&(package.to_owned(), rust_name.to_owned()))
    }

    /// Other services of a package, by their Rust names.
    pub(crate) fn other_services(&self, package: &str, of: &str) -> Vec<&str> {
        let all = self.services.get(package).into_iter().flatten().map(String::as_str);
        let mut others: Vec<_> = all.collect();
        // One of those with its own name is the service itself.
        if let Some(own) = others.iter().position(|other| *other == of) {
            others.remove(own);
        }
        others
    }
}

/// `package.name`, or the name alone without a package.
pub(crate) fn joined(package: &str, name: &str) -> String {
    if package.is_empty() { name.to_owned() } else { format!("{package}.{name}") }
}
