//! The load: client endpoints of one thread that send large requests to one server.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use courser::{Config, Control, EndpointHandle, Nexus, Rpc, SessionId};
use courser_bench::contention::Contention;
use courser_bench::netns::Host;
use courser_kit::Failure;
use courser_kit::affinity::{self, Cores};
use serde::Serialize;

use super::qdisc::Reader;
use super::{DISCIPLINE, failed};

/// Request type; the response is empty.
const SINK: u16 = 1;
/// Calls in flight of each client.
const IN_FLIGHT: u32 = 2;
/// Time between two samples of the queue.
const SAMPLE: Duration = Duration::from_millis(2);

/// A load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) control: Control,
    pub(super) senders: u32,
    /// Bytes of a request.
    pub(super) size: usize,
    /// Time before the measurement, and of it.
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
}

/// Measurements under a load.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measured {
    /// Mean number of bytes in the queue.
    pub(super) backlog_bytes: f64,
    pub(super) backlog_max_bytes: u32,
    pub(super) samples: u32,
    /// Packets that the queue dropped.
    pub(super) dropped: u32,
    /// Bits of answered requests per second.
    pub(super) goodput_bps: f64,
    /// Share of the time for which the threads of the benchmark waited for a core.
    pub(super) cpu_wait_share: Option<f64>,
    /// Of the slowest client, as a fraction of the mean.
    pub(super) slowest_fraction: f64,
    /// Means over the clients at the end.
    pub(super) srtt_ns: f64,
    pub(super) rtt_min_ns: f64,
    pub(super) retransmitted: u64,
    pub(super) decreases: u64,
    pub(super) paced: u64,
    /// Largest payload of a datagram, and the bytes of a request in it.
    #[serde(skip)]
    pub(super) max_frame: usize,
    #[serde(skip)]
    pub(super) data_per_packet: u16,
}

impl Load {
    /// Runs the load between two hosts; the first sends.
    ///
    /// # Errors
    /// An endpoint could not be opened or connected, or a call failed.
    pub(super) fn run(&self, hosts: &[Host; 2], cores: &Cores) -> Result<Measured, Failure> {
        let (tell, told) = mpsc::channel();
        let (uri, measuring, ended) =
            (OnceLock::new(), AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                affinity::pin_current_thread(cores.server).map_err(failed)?;
                self.serve(&hosts[1], tell)
            });
            let Ok((server_uri, server_handle)) = told.recv() else {
                return Err(server.join().map_err(|_| panicked())?.err().unwrap_or_else(panicked));
            };
            let uri = uri.get_or_init(|| server_uri);
            let sampler = scope.spawn(|| {
                // On the clients' core it would stop them, and the queue would drain meanwhile.
                affinity::pin_current_thread(cores.server).map_err(failed)?;
                sample(&hosts[0], &measuring, &ended).map_err(failed)
            });
            let client = scope.spawn(|| {
                affinity::pin_current_thread(cores.client).map_err(failed)?;
                self.send(&hosts[0], uri, &measuring)
            });
            let client = client.join();
            ended.store(true, Ordering::Relaxed);
            server_handle.stop();
            let queue = sampler.join().map_err(|_| panicked())?;
            server.join().map_err(|_| panicked())??;
            let mut measured = client.map_err(|_| panicked())??;
            let queue = queue?;
            measured.backlog_bytes = queue.bytes as f64 / f64::from(queue.samples.max(1));
            measured.backlog_max_bytes = queue.most;
            measured.samples = queue.samples;
            measured.dropped = queue.dropped;
            Ok(measured)
        })
    }

    fn config(&self) -> Config {
        Config { control: self.control, ..Config::default() }
    }

    fn serve(
        &self,
        host: &Host,
        tell: mpsc::Sender<(String, EndpointHandle)>,
    ) -> Result<(), Failure> {
        host.enter().map_err(failed)?;
        let nexus = Nexus::bind_with(&format!("udp://{}:0", host.address(false)), self.config())?;
        let mut rpc = nexus.endpoint()?;
        rpc.on(SINK, |cx, _| cx.reply(""));
        let _ = tell.send((nexus.local_uri(), rpc.handle()));
        rpc.run().map_err(failed)
    }

    /// Sends requests from all clients until the time is over.
    fn send(&self, host: &Host, uri: &str, measuring: &AtomicBool) -> Result<Measured, Failure> {
        host.enter().map_err(failed)?;
        let nexus = Nexus::bind_with(&format!("udp://{}:0", host.address(false)), self.config())?;
        let clients = (0..self.senders).map(|_| Client::connect(&nexus, uri));
        let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
        self.turns(&mut clients, self.warm_up)?;
        clients.iter().for_each(|client| client.sent.set(0));
        measuring.store(true, Ordering::Relaxed);
        let (start, contention) = (Instant::now(), Contention::begin());
        self.turns(&mut clients, self.time)?;
        let cpu_wait_share = contention.and_then(|contention| contention.share());
        let seconds = start.elapsed().as_secs_f64();
        measuring.store(false, Ordering::Relaxed);
        let sent: Vec<_> = clients.iter().map(|client| client.sent.get()).collect();
        let (sum, least) = (sent.iter().sum::<u64>() as f64, sent.iter().min().copied());
        let mut measured = Measured {
            goodput_bps: sum * 8.0 / seconds,
            cpu_wait_share,
            slowest_fraction: least.unwrap_or_default() as f64 * sent.len() as f64 / sum.max(1.0),
            ..Measured::default()
        };
        clients.iter().for_each(|client| client.add_to(&mut measured, self.senders));
        Ok(measured)
    }

    /// Polls all clients in turn, each with as many calls as it may have.
    fn turns(&self, clients: &mut [Client], time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for client in &mut *clients {
                client.turn(self.size)?;
            }
        }
        Ok(())
    }
}

/// A client endpoint.
struct Client {
    rpc: Rpc,
    session: SessionId,
    in_flight: Rc<Cell<u32>>,
    /// Bytes of answered requests.
    sent: Rc<Cell<u64>>,
    error: Rc<RefCell<Option<String>>>,
}

impl Client {
    fn connect(nexus: &Nexus, uri: &str) -> Result<Self, Failure> {
        let mut rpc = nexus.endpoint()?;
        let session = rpc.connect(uri)?;
        rpc.wait_connected(session)?;
        Ok(Self {
            rpc,
            session,
            in_flight: Rc::default(),
            sent: Rc::default(),
            error: Rc::default(),
        })
    }

    /// Makes calls up to [`IN_FLIGHT`] and polls once.
    fn turn(&mut self, size: usize) -> Result<(), Failure> {
        while self.in_flight.get() < IN_FLIGHT {
            let request = self.rpc.alloc(size).map_err(failed)?;
            let (in_flight, sent) = (self.in_flight.clone(), self.sent.clone());
            let error = self.error.clone();
            let call = self.rpc.call(self.session, SINK, request, move |_, done| {
                in_flight.set(in_flight.get() - 1);
                match done.result {
                    Ok(_) => sent.set(sent.get() + size as u64),
                    Err(e) => *error.borrow_mut() = Some(e.to_string()),
                }
            });
            call.map_err(|rejected| failed(rejected.reason))?;
            self.in_flight.set(self.in_flight.get() + 1);
        }
        self.rpc.poll();
        self.error.take().map_or(Ok(()), |error| Err(Failure::Runtime(error)))
    }

    /// Adds this client's counters, as one of `clients`.
    fn add_to(&self, m: &mut Measured, clients: u32) {
        let share = |ns: Option<u64>| ns.unwrap_or_default() as f64 / f64::from(clients);
        if let Some(session) = self.rpc.session_stats(self.session) {
            m.srtt_ns += share(session.srtt_ns);
            m.rtt_min_ns += share(session.rtt_min_ns);
            m.decreases += session.decreases;
            m.data_per_packet = session.data_per_packet;
        }
        m.retransmitted += self.rpc.stats().retransmitted;
        m.paced += self.rpc.stats().paced;
        m.max_frame = self.rpc.transport().caps().max_frame;
    }
}

/// Samples of the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    samples: u32,
    bytes: u64,
    most: u32,
    dropped: u32,
}

/// Samples the queue of a host's device while `measuring`, until `ended`.
fn sample(host: &Host, measuring: &AtomicBool, ended: &AtomicBool) -> io::Result<Samples> {
    host.enter()?;
    let reader = Reader::open()?;
    let mut taken = Samples::default();
    let before = reader.read(DISCIPLINE)?.dropped;
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(SAMPLE);
        if measuring.load(Ordering::Relaxed) {
            let queue = reader.read(DISCIPLINE)?;
            taken.samples += 1;
            taken.bytes += u64::from(queue.backlog_bytes);
            taken.most = taken.most.max(queue.backlog_bytes);
            taken.dropped = queue.dropped - before;
        }
    }
    Ok(taken)
}

/// A thread of the benchmark has panicked, which prints why.
fn panicked() -> Failure {
    Failure::Runtime("a thread of the benchmark panicked".to_owned())
}
