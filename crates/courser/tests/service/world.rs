//! A network of one server and its clients within a thread, as a seeded scheduler: it delivers
//! requests and answers in any order, and polls handlers at any time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use courser::service::{
    CallOptions, Channel, LocalRegistry, Received, Registry, Services, SessionKey, to_message,
};
use courser::{AllocError, CallError, CallFailure, Executed, MsgBuf, Reply, Status};
use courser_buf::Arena;

pub const LIMIT: usize = 8 << 20;

type Task = Pin<Box<dyn Future<Output = MsgBuf>>>;
type Handler = Box<dyn FnMut(Received<'_>) -> Task>;

/// A call of the network, from its start until the client has taken its end.
struct Call {
    session: u64,
    number: u16,
    is_message: bool,
    request: Option<MsgBuf>,
    task: Option<(Task, Arc<Flag>)>,
    answer: Option<MsgBuf>,
    end: Option<Result<MsgBuf, CallFailure>>,
    waker: Option<Waker>,
    cancelled: bool,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct State {
    seed: u64,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    sessions: u64,
    handlers: BTreeMap<(bool, u16), Handler>,
    /// Requests and answers arrive in any order.
    pub reorders: bool,
    /// One call of this number fails; 0: none.
    pub failures: u64,
    /// Longest time that a session, by its number, is not served.
    pub stalled: Option<u64>,
    pub deadlines: Vec<Option<Duration>>,
    pub started: u64,
}

/// The network.
#[derive(Clone)]
pub struct World {
    pub state: Rc<RefCell<State>>,
    pub arena: Arena,
    pub services: Services,
}

/// A session of a client.
#[derive(Clone)]
pub struct Session {
    pub world: World,
    pub number: u64,
}

pub struct Running {
    world: World,
    id: u64,
}

impl State {
    pub fn random(&mut self, below: u64) -> u64 {
        self.seed =
            self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mut x = self.seed;
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (x ^ (x >> 33)) % below
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let state = State {
            seed,
            calls: BTreeMap::new(),
            next_call: 0,
            sessions: 0,
            handlers: BTreeMap::new(),
            reorders: true,
            failures: 0,
            stalled: None,
            deadlines: Vec::new(),
            started: 0,
        };
        World {
            state: Rc::new(RefCell::new(state)),
            arena: Arena::heap(),
            services: Services::default(),
        }
    }

    /// The server is replaced by another one.
    pub fn replace(&self, by: &World) {
        let handlers = std::mem::take(&mut by.state.borrow_mut().handlers);
        self.state.borrow_mut().handlers = handlers;
    }

    pub fn session(&self) -> Session {
        let mut state = self.state.borrow_mut();
        state.sessions += 1;
        Session { world: self.clone(), number: state.sessions }
    }

    /// Removes the handler of a method of the key-value store.
    pub fn forget(&self, method: &str) {
        let number = crate::kv::number(method);
        self.state.borrow_mut().handlers.remove(&(false, number));
    }

    /// Removes the handler of hellos.
    pub fn forget_hello(&self) {
        self.state.borrow_mut().handlers.remove(&(false, 0x03F0));
    }

    /// Calls that the server has not answered, or the client not taken.
    pub fn calls(&self) -> usize {
        self.state.borrow().calls.len()
    }

    fn start(&self, session: u64, number: u16, request: MsgBuf, is_message: bool) -> Running {
        let mut state = self.state.borrow_mut();
        let id = state.next_call;
        state.next_call += 1;
        state.started += 1;
        let call = Call {
            session,
            number,
            is_message,
            request: Some(request),
            task: None,
            answer: None,
            end: None,
            waker: None,
            cancelled: false,
        };
        state.calls.insert(id, call);
        Running { world: self.clone(), id }
    }

    /// Runs one event of the network; false: there is none.
    pub fn step(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let stalled = state.stalled;
        let ready: Vec<u64> = (state.calls.iter())
            .filter(|(_, call)| stalled != Some(call.session))
            .filter(|(_, call)| {
                let woken = call.task.as_ref().is_some_and(|(_, f)| f.0.load(Ordering::Relaxed));
                call.cancelled || call.request.is_some() || call.answer.is_some() || woken
            })
            .map(|(id, _)| *id)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let which = if state.reorders { state.random(ready.len() as u64) as usize } else { 0 };
        let id = ready[which];
        drop(state);
        self.run_call(id);
        true
    }

    fn run_call(&self, id: u64) {
        let mut state = self.state.borrow_mut();
        let failures = state.failures;
        let fails = failures > 0 && state.random(failures) == 0;
        let call = state.calls.get_mut(&id).expect("it is ready");
        if call.cancelled {
            let dropped = state.calls.remove(&id);
            drop(state);
            return drop(dropped);
        }
        if fails {
            call.end = Some(Err(CallError::PeerFailed(Executed::Maybe).into()));
            let (task, waker) = (call.task.take(), call.waker.take());
            (call.request, call.answer) = (None, None);
            drop(state);
            drop(task);
            return waker.into_iter().for_each(Waker::wake);
        }
        if let Some(request) = call.request.take() {
            let (number, session, is_message) = (call.number, call.session, call.is_message);
            let handler = state.handlers.remove(&(is_message, number));
            let borrows = request.len() < 1000;
            drop(state);
            let Some(mut handler) = handler else {
                return self.end(id, Err(CallError::Server(Status::UnknownType).into()));
            };
            let key = SessionKey::new(0, session);
            let received = if borrows {
                Received::borrowed(&request, key, &self.arena, LIMIT)
            } else {
                Received::owned(request, key, &self.arena, LIMIT)
            };
            let task = handler(received);
            let mut state = self.state.borrow_mut();
            state.handlers.insert((is_message, number), handler);
            let flag = Arc::new(Flag(AtomicBool::new(true)));
            if let Some(call) = state.calls.get_mut(&id) {
                call.task = Some((task, flag));
            }
            return;
        }
        if let Some(answer) = call.answer.take() {
            drop(state);
            return self.end(id, Ok(answer));
        }
        if let Some((mut task, flag)) = call.task.take() {
            drop(state);
            flag.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(flag.clone());
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            let mut state = self.state.borrow_mut();
            let Some(call) = state.calls.get_mut(&id) else { return };
            match polled {
                Poll::Ready(answer) => call.answer = Some(answer),
                Poll::Pending => call.task = Some((task, flag)),
            }
        }
    }

    fn end(&self, id: u64, end: Result<MsgBuf, CallFailure>) {
        let mut state = self.state.borrow_mut();
        let Some(call) = state.calls.get_mut(&id) else { return };
        if call.is_message {
            state.calls.remove(&id);
            return;
        }
        call.end = Some(end);
        let waker = call.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Runs a future and the network; panics when nothing can happen any more.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.try_run(future).unwrap_or_else(|| panic!("deadlock with {} calls", self.calls()))
    }

    /// Runs a future and the network until it is ready, or nothing can happen any more.
    pub fn try_run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        loop {
            if flag.0.swap(false, Ordering::Relaxed)
                && let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Some(out);
            }
            if !flag.0.load(Ordering::Relaxed) && !self.step() {
                return None;
            }
        }
    }

    /// Runs the network until nothing happens.
    pub fn settle(&self) {
        while self.step() {}
    }

    /// Sends a request that no client made, and returns its answer, if there is one at once.
    pub fn raw(&self, session: u64, number: u16, request: &[u8]) -> Running {
        let mut message = self.arena.alloc(request.len()).unwrap();
        message.copy_from_slice(request);
        self.start(session, number, message, false)
    }

    /// Nothing is left of any call or stream.
    pub fn assert_clean(&self) {
        self.settle();
        assert_eq!(self.calls(), 0, "calls");
        assert_eq!(self.services.stats().streams, 0, "streams");
        assert_eq!(self.arena.stats().in_use_buffers, 0, "buffers");
    }

    fn register<F, R>(&self, is_message: bool, number: u16, mut handler: F)
    where
        F: FnMut(Received<'_>, Arena) -> R + 'static,
        R: Future<Output = MsgBuf> + 'static,
    {
        let arena = self.arena.clone();
        let boxed: Handler = Box::new(move |r| Box::pin(handler(r, arena.clone())) as Task);
        let earlier = self.state.borrow_mut().handlers.insert((is_message, number), boxed);
        assert!(earlier.is_none(), "registered twice");
    }
}

async fn answered<F: Future<Output: Reply>>(future: F, arena: Arena) -> MsgBuf {
    to_message(future.await, &arena).unwrap()
}

async fn received(future: impl Future<Output = ()>, arena: Arena) -> MsgBuf {
    future.await;
    arena.alloc(0).unwrap()
}

impl LocalRegistry for World {
    fn services(&self) -> &Services {
        &self.services
    }
    fn is_taken(&self, number: u16) -> bool {
        self.state.borrow().handlers.contains_key(&(false, number))
    }
    fn on_request<H, F>(&mut self, number: u16, mut handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future + 'static,
        F::Output: Reply,
    {
        self.register(false, number, move |r, arena| answered(handler(r), arena));
    }
    fn on_message<H, F>(&mut self, number: u16, mut handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.register(true, number, move |r, arena| received(handler(r), arena));
    }
}

impl Registry for World {
    fn services(&self) -> &Services {
        &self.services
    }
    fn is_taken(&self, number: u16) -> bool {
        LocalRegistry::is_taken(self, number)
    }
    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future + Send + 'static,
        F::Output: Reply + Send,
    {
        LocalRegistry::on_request(self, number, handler);
    }
    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        LocalRegistry::on_message(self, number, handler);
    }
}

impl Channel for Session {
    type Call<'a> = Running;
    type Sent<'a> = std::future::Ready<Result<(), CallFailure>>;
    type Another<'a> = std::future::Ready<Result<Self, CallFailure>>;
    type OwnedCall = Running;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.world.arena.alloc(len)
    }
    fn limit(&self) -> usize {
        LIMIT
    }
    fn call(&self, number: u16, request: MsgBuf, options: CallOptions) -> Running {
        self.world.state.borrow_mut().deadlines.push(options.deadline);
        self.world.start(self.number, number, request, false)
    }
    fn call_owned(&self, number: u16, request: MsgBuf, options: CallOptions) -> Running {
        self.call(number, request, options)
    }
    fn send(&self, number: u16, message: MsgBuf, options: CallOptions) -> Self::Sent<'_> {
        self.world.state.borrow_mut().deadlines.push(options.deadline);
        let running = self.world.start(self.number, number, message, true);
        std::mem::forget(running); // it is not cancelled
        std::future::ready(Ok(()))
    }
    fn another(&self, _: CallOptions) -> Self::Another<'_> {
        std::future::ready(Ok(self.world.session()))
    }
}

impl Future for Running {
    type Output = Result<MsgBuf, CallFailure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.world.state.borrow_mut();
        let Some(call) = state.calls.get_mut(&self.id) else { return Poll::Pending };
        match call.end.take() {
            Some(end) => {
                state.calls.remove(&self.id);
                Poll::Ready(end)
            }
            None => {
                call.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(mut state) = self.world.state.try_borrow_mut() else { return };
        if let Some(call) = state.calls.get_mut(&self.id) {
            call.cancelled = true;
        }
    }
}

/// Waits for something that happens soon, at most 30 s.
pub fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
