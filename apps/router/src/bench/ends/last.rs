//! The last node's thread: the nodes by which packets leave, and the receiver of the baseline.

use std::sync::Arc;
use std::thread;

use courser::parts::transport::{Addr, AnyTransport};
use courser_kit::affinity::Cores;

use super::{Bound, End, Exchange};
use crate::bench::baseline::Receiver;
use crate::bench::sink::{IDLE, Line, Sink};
use crate::bench::{BenchError, Settings, Workload};
use crate::config::Config;
use crate::line::Outlet;
use crate::run::NodeError;

/// The last node's thread.
pub(super) struct Last {
    line: Arc<Line>,
    ends: Vec<End<Sink>>,
    receiver: Receiver,
}

impl Last {
    pub(super) fn start(
        settings: &Settings,
        line: &Arc<Line>,
        exchange: Exchange,
        count: usize,
        (receiver, sender): (AnyTransport, Addr),
    ) -> Result<Last, BenchError> {
        let bound = Bound::new(settings, 1)?;
        let others = exchange.swap(bound.addresses()).ok_or(BenchError::Thread)?;
        let routes = |config: &Config| Ok(config.routes().map_err(NodeError::from)?);
        let ends = bound.start(1, &others, routes, |at| Sink::new(line, at + 1, count))?;
        let receiver = Receiver::new(receiver, sender, Sink::new(line, 0, count))?;
        Ok(Last { line: Arc::clone(line), ends, receiver })
    }

    /// Works until the first node's thread ends. Returns frames and bytes sent by the nodes.
    pub(super) fn run(mut self, cores: &Cores) -> Result<Vec<(u64, u64)>, BenchError> {
        let mut current = IDLE;
        while !self.line.is_stopped() {
            let wanted = self.line.wanted();
            if wanted != current {
                self.begin(wanted);
                current = wanted;
            }
            let worked = match Workload::of(current) {
                Some(Workload::Baseline) => {
                    let worked = self.receiver.poll();
                    self.receiver.sink.flush();
                    worked
                }
                Some(workload) => match workload.node() {
                    Some(node) => self.ends[node].pass(),
                    None => self.serve(),
                },
                None => self.serve(),
            };
            if !worked && !cores.distinct() {
                thread::yield_now();
            }
        }
        Ok(self.ends.iter().map(End::frames).collect())
    }

    fn serve(&mut self) -> bool {
        let worked = self.ends.iter_mut().map(End::pass).fold(false, |any, one| any | one);
        if !worked {
            thread::yield_now();
        }
        worked
    }

    fn begin(&mut self, workload: usize) {
        let first = self.line.first();
        self.receiver.sink.begin(first);
        self.ends.iter().for_each(|end| end.node.borrow_mut().outlet_mut().begin(first));
        self.line.changed(workload);
    }
}
