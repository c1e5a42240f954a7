//! Counters that several threads increment.

use std::sync::atomic::{AtomicU64, Ordering};

/// Adds one. `Relaxed` suffices: counters order nothing.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Declares statistics as `stats!` does, and after them `shared NAME;`: a struct with the same fields
/// as atomics, of which `read` makes the statistics. All fields are `u64`.
macro_rules! shared_stats {
    (
        $(#[$meta:meta])*
        $vis:vis struct $struct:ident: $group:literal {
            $(
                $(#[doc = $help:literal])+
                $fvis:vis $field:ident: u64 = $kind:ident($unit:ident)
            ),* $(,)?
        }

        $(#[$shared_meta:meta])*
        $shared_vis:vis shared $shared:ident;
    ) => {
        courser_buf::stats! {
            $(#[$meta])*
            $vis struct $struct: $group {
                $( $(#[doc = $help])+ $fvis $field: u64 = $kind($unit), )*
            }
        }

        $(#[$shared_meta])*
        #[derive(Default, Debug)]
        $shared_vis struct $shared {
            $( $(#[doc = $help])+ $shared_vis $field: std::sync::atomic::AtomicU64, )*
        }

        impl $shared {
            /// The counters at this moment.
            $shared_vis fn read(&self) -> $struct {
                let read = |n: &std::sync::atomic::AtomicU64| {
                    n.load(std::sync::atomic::Ordering::Relaxed)
                };
                $struct { $( $field: read(&self.$field), )* }
            }
        }
    };
}

pub(crate) use shared_stats;

#[cfg(test)]
mod tests {
    use courser_buf::stats::Stats;
    use courser_buf::{ArenaStats, ClassStats};
    use courser_net::{FaultCounts, TransportStats};
    use courser_proto::{EndpointStats, MemoryUse, SessionStats};

    use crate::client::PollingStats;
    use crate::control::ControlStats;
    use crate::core::handled::HandlerStats;
    use crate::core::shares::ClientStats;
    use crate::core::tasks::TaskStats;
    use crate::counts::{Latency, MethodStats};
    use crate::run::worker::WorkerStats;
    use crate::server::ServerStats;
    use crate::service::ServiceStats;

    const HEAD: &str = "# Statistics

Numbers that Courser counts, as its structs declare them. `courser::stats::Stats` iterates over the
numbers of a struct; `courser stat` shows those of a running `courser serve`, and of servers with
`Server::add_introspection`, with the same names in JSON. A counter only grows, a gauge is an amount at the moment, a peak is the largest amount so far;
a state is not a number. An array has a number for each element of the table below it.

This file is generated: `COURSER_WRITE_DOCS=1 cargo test -p courser --lib statistics`.
";

    #[test]
    fn the_documentation_of_statistics_lists_each_declared_number() {
        let groups = [
            EndpointStats::GROUP,
            TransportStats::GROUP,
            FaultCounts::GROUP,
            SessionStats::GROUP,
            MemoryUse::GROUP,
            ArenaStats::GROUP,
            ClassStats::GROUP,
            HandlerStats::GROUP,
            WorkerStats::GROUP,
            TaskStats::GROUP,
            ControlStats::GROUP,
            ServerStats::GROUP,
            ServiceStats::GROUP,
            MethodStats::GROUP,
            Latency::GROUP,
            ClientStats::GROUP,
            PollingStats::GROUP,
        ];
        let tables = groups.map(|group| format!("\n{}", group.markdown()));
        let text = format!("{HEAD}{}", tables.concat());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/statistics.md");
        if std::env::var_os("COURSER_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let written = std::fs::read_to_string(path).expect("it can be read");
        assert!(written == text, "docs/statistics.md is old; COURSER_WRITE_DOCS=1 writes it");
    }
}
