//! The application of a congested world: each client keeps a request outstanding to each of its
//! servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Completion, Context, MsgBuf, Nexus, Rpc, SessionId};

use super::draw::{Crowd, Sizes, purpose};
use crate::swarm::bytes::fill;
use crate::{Rng, SetupError};

/// Answered with the request's [`answer`].
const REQUEST: u16 = 1;

/// Calls of all clients.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Calls that ended with the right response.
    pub(super) ended: u64,
    /// The error of the first call that failed.
    pub(super) failed: Option<String>,
}

pub(super) type SharedTally = Rc<RefCell<Tally>>;

/// An endpoint that answers requests.
pub(super) fn server(nexus: &Nexus) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    rpc.on(REQUEST, |cx, request| {
        cx.reply(answer(&request));
    });
    Ok(rpc)
}

/// The first bytes of a request, and its length.
fn answer(request: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(request.first_chunk().unwrap_or(&[0; 8]));
    bytes[8..].copy_from_slice(&(request.len() as u64).to_le_bytes());
    bytes
}

/// A flow of requests to a server.
struct Lane {
    session: SessionId,
    sizes: Sizes,
    /// The buffer, if no request is outstanding.
    request: Option<MsgBuf>,
}

struct Client {
    lanes: Vec<Lane>,
    rng: Rng,
    tally: SharedTally,
}

/// Makes an endpoint the client of its host's flows.
pub(super) fn start(
    rpc: &mut Rpc,
    crowd: &Crowd,
    host: u32,
    tally: &SharedTally,
) -> Result<(), SetupError> {
    let rng = Rng::stream(crowd.seed, purpose::SIZES + u64::from(host));
    let client = Client { lanes: Vec::new(), rng, tally: Rc::clone(tally) };
    let client = Rc::new(RefCell::new(client));
    for flow in crowd.flows.iter().filter(|flow| flow.from == host) {
        let session = rpc.connect(&flow.server())?;
        let mut own = client.borrow_mut();
        let at = own.lanes.len();
        own.lanes.push(Lane { session, sizes: crowd.sizes, request: None });
        let begins = Rc::clone(&client);
        let after = Duration::from_nanos(flow.starts_ns);
        rpc.context().after(after, move |cx| begins.borrow_mut().issue(cx, at));
    }
    rpc.on_completion(move |cx, lane, done| client.borrow_mut().ended(cx, lane as usize, done));
    Ok(())
}

impl Client {
    fn issue(&mut self, cx: &mut Context<'_>, at: usize) {
        let lane = &mut self.lanes[at];
        let len = lane.sizes.draw(&mut self.rng);
        let request = match lane.request.take().filter(|request| request.len() == len) {
            Some(request) => request,
            None => match cx.alloc(len) {
                Ok(mut request) => {
                    fill(at as u64, &mut request);
                    request
                }
                Err(e) => return self.fail(e.to_string()),
            },
        };
        let call = cx.request(lane.session, REQUEST, request).tag(at as u64);
        if let Err(rejected) = call.send() {
            self.fail(rejected.reason.to_string());
        }
    }

    fn ended(&mut self, cx: &mut Context<'_>, at: usize, done: Completion<'_>) {
        let expected = answer(&done.request);
        self.lanes[at].request = Some(done.request);
        match done.result {
            Ok(response) if response[..] == expected => self.tally.borrow_mut().ended += 1,
            Ok(_) => return self.fail("the response of another request".to_owned()),
            Err(e) => return self.fail(e.to_string()),
        }
        self.issue(cx, at);
    }

    fn fail(&self, why: String) {
        self.tally.borrow_mut().failed.get_or_insert(why);
    }
}
