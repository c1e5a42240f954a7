//! The clients of the shapes.

use std::cell::RefCell;
use std::rc::Rc;

use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId};
use courser_sim::{Rng, SetupError};

use crate::scenario::app::{self, SharedTally};

/// Sizes of requests, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) least: usize,
    pub(super) most: usize,
}

impl Sizes {
    /// A size whose logarithm is uniform; a multiple of `packet` bytes if the smallest is one.
    fn draw(self, rng: &mut Rng) -> usize {
        if self.least == self.most {
            return self.most;
        }
        let share = rng.below(1 << 20) as f64 / f64::from(1 << 20);
        let (least, most) = (self.least as f64, self.most as f64);
        let bytes = (least * (most / least).powf(share)) as usize;
        bytes / self.least * self.least
    }
}

/// Lanes to a server, each with a request outstanding.
pub(super) struct Group {
    pub(super) server: String,
    pub(super) lanes: u32,
    pub(super) sizes: Sizes,
    pub(super) tally: SharedTally,
    /// Large requests and small calls are started and stopped apart.
    pub(super) is_small: bool,
}

struct Lane {
    session: SessionId,
    sizes: Sizes,
    tally: SharedTally,
    is_small: bool,
    is_on: bool,
    is_busy: bool,
    request: Option<MsgBuf>,
    since_ns: u64,
}

/// A client that keeps a request outstanding on each of its lanes.
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    rng: Rng,
}

/// The client and the handle by which it is started and stopped.
pub(super) type SharedLanes = Rc<RefCell<Lanes>>;

impl Lanes {
    /// An endpoint with such a client.
    pub(super) fn start(
        nexus: &Nexus,
        groups: &[Group],
        rng: Rng,
    ) -> Result<(Rpc, SharedLanes), SetupError> {
        let mut rpc = nexus.endpoint()?;
        let mut lanes = Vec::new();
        for group in groups {
            let session = rpc.connect(&group.server)?;
            lanes.extend((0..group.lanes).map(|_| Lane {
                session,
                sizes: group.sizes,
                tally: Rc::clone(&group.tally),
                is_small: group.is_small,
                is_on: false,
                is_busy: false,
                request: None,
                since_ns: 0,
            }));
        }
        let client = Rc::new(RefCell::new(Lanes { lanes, rng }));
        let own = Rc::clone(&client);
        rpc.on_completion(move |cx, lane, done| own.borrow_mut().ended(cx, lane as usize, done));
        Ok((rpc, client))
    }

    /// Sends on all lanes of large requests or small calls, or lets their requests end.
    pub(super) fn switch(&mut self, cx: &mut Context<'_>, is_small: bool, on: bool) {
        for at in 0..self.lanes.len() {
            if self.lanes[at].is_small == is_small {
                self.lanes[at].is_on = on;
                self.issue(cx, at);
            }
        }
    }

    fn issue(&mut self, cx: &mut Context<'_>, at: usize) {
        let lane = &mut self.lanes[at];
        if lane.is_busy || !lane.is_on {
            return;
        }
        let bytes = lane.sizes.draw(&mut self.rng);
        let request = match lane.request.take().filter(|request| request.len() == bytes) {
            Some(request) => request,
            None => match cx.alloc(bytes) {
                Ok(mut request) => {
                    // Fixed content, so that runs are identical to the last bit.
                    request.fill(0xa5);
                    request
                }
                Err(error) => return lane.tally.borrow_mut().failed(&error),
            },
        };
        lane.since_ns = cx.now_ns();
        lane.is_busy = true;
        let call = cx.request(lane.session, app::SINK, request).tag(at as u64);
        if let Err(rejected) = call.send() {
            lane.tally.borrow_mut().failed(&rejected.reason);
        }
    }

    fn ended(&mut self, cx: &mut Context<'_>, at: usize, done: Completion<'_>) {
        let lane = &mut self.lanes[at];
        lane.tally.borrow_mut().ended(&done.result, cx.now_ns() - lane.since_ns);
        lane.request = Some(done.request);
        lane.is_busy = false;
        self.issue(cx, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_of_the_smallest_and_reach_both_ends() {
        let (mut rng, sizes) = (Rng::new(1), Sizes { least: 1_000, most: 64_000 });
        let drawn: Vec<usize> = (0..1_000).map(|_| sizes.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|bytes| bytes % 1_000 == 0 && (1_000..=64_000).contains(bytes)));
        assert!(drawn.contains(&1_000) && drawn.iter().any(|&bytes| bytes > 50_000));
        let small = drawn.iter().filter(|&&bytes| bytes < 8_000).count();
        assert!((400..600).contains(&small), "{small} of 1,000 below the geometric mean");
    }
}
