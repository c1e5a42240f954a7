//! Every error text states what happened and, after its last semicolon, what to do.
//!
//! The tables list each variant of each public error type. A file's table is as long as the file
//! has error attributes, so that a new variant without a row fails here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use courser::{
    AllocError, BindError, CallError, CallFailure, CallRejected, CallWaitError, CallWaitReason,
    ClientError, ConnectRefuseReason, DialError, Elapsed, Executed, LostReason, RejectReason,
    ReplyError, RunError, ServerError, SessionEnd, SessionError, Status, TaskEnded, Uri, UriError,
    WorkerError,
};
use courser_buf::{Addr, Arena, ArenaConfig, ConfigError, Heap, MapCause, MapError, SetLenError};
use courser_net::shm::Unsafe;
use courser_net::{
    BindSpec, FaultPlan, FaultSyntax, MemError, OpenError, PathError, ShmError, UdpError,
    ZoneError, any,
};
use courser_proto as proto;
use courser_proto::{ConnectError, ControlError, ControlRefusal, Recovery, UnknownRecovery};

/// The verbs that may begin an advice.
const VERBS: &str = "allocate answer bind call check choose close connect correct drop free lower make \
    name open put raise read register return reuse run set shut split start stop try upgrade use \
    wait write";

fn has_advice(text: &str) -> bool {
    // The execution state of the handler follows in parentheses.
    let text = ["(never executed)", "(may have executed)", "(executed)"]
        .iter()
        .find_map(|end| text.strip_suffix(end))
        .unwrap_or(text);
    let advice = text.rsplit_once("; ").map(|(_, advice)| advice);
    let verb = advice.and_then(|advice| advice.split_whitespace().next());
    verb.is_some_and(|verb| VERBS.split_whitespace().any(|known| known == verb))
}

/// Checks the error texts that a source file defines.
fn check(source: &str, texts: &[String]) {
    let attributes = source.lines().filter(|line| line.trim().starts_with("#[error(")).count();
    assert_eq!(texts.len(), attributes, "a row for each error: {texts:#?}");
    for text in texts {
        assert!(has_advice(text), "no advice: {text}");
        recommended::try_out(text);
        assert!(text.len() < 400 && !text.contains('\n'), "too long: {text}");
    }
}

macro_rules! texts {
    ($($error:expr),* $(,)?) => { [$($error.to_string()),*] };
}

fn broken() -> io::Error {
    io::Error::other("broken")
}

fn here() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 31850).into()
}

fn uri() -> UriError {
    "nowhere".parse::<Uri>().unwrap_err()
}

fn zone() -> ZoneError {
    let uri: Uri = "udp://[fe80::1%absent]:31850".parse().unwrap();
    uri.socket_addr().unwrap_err()
}

fn no_memory() -> AllocError {
    let config = ArenaConfig { limit_bytes: 1 << 16, ..ArenaConfig::default() };
    Arena::new(Arc::new(Heap::default()), config).unwrap().alloc(1 << 30).unwrap_err()
}

fn map() -> MapError {
    MapError { bytes: 7, cause: MapCause::BadSize }
}

/// Tries what texts recommend: addresses are read and bound, commands run, settings exist.
mod recommended {
    use std::net::IpAddr;
    use std::process::{Command, Stdio};

    use courser::{BindError, Nexus, Uri};

    /// Commands that read only: they are run, where their program is installed.
    const READING: [&str; 7] = [
        "ulimit -n",
        "ulimit -u",
        "ip addr",
        "ip route",
        "ss -xlp",
        "ss -ulpn",
        "nft list ruleset",
    ];
    /// Commands on a directory that was checked to be the user's own, and no link.
    const CHANGING: [&str; 1] = ["chmod 700"];

    pub(super) fn try_out(text: &str) {
        // The text of a wrong address begins with it, in quotes.
        let rest = if text.starts_with('`') { text.splitn(3, '`').last() } else { Some(text) };
        let rest = rest.unwrap_or_default();
        rest.split('`').skip(1).step_by(2).for_each(command);
        let advice = rest.rsplit_once("; ").map_or("", |(_, advice)| advice);
        let end = |c: char| ",;.)".contains(c);
        for word in advice.split_whitespace().map(|word| word.trim_matches(['(', '`'])) {
            address(word.trim_end_matches(end));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        rest.split(|c| !is_name(c)).for_each(|name| setting(name.trim_end_matches(':')));
    }

    fn command(command: &str) {
        if CHANGING.contains(&command) {
            return;
        }
        assert!(READING.contains(&command), "`{command}` is not known to be harmless");
        let quiet = |text: &str| {
            let mut shell = Command::new("bash"); // `ulimit -u` is not in every shell
            let shell = shell.args(["-c", text]).stdout(Stdio::null()).stderr(Stdio::null());
            shell.status().is_ok_and(|status| status.success())
        };
        let program = command.split(' ').next().unwrap_or_default();
        if !quiet(&format!("command -v {program}")) {
            return println!("skipped: `{command}`, which is not installed");
        }
        if program == "nft" && !rustix::process::geteuid().is_root() {
            return println!("skipped: `{command}`, which needs root");
        }
        assert!(quiet(command), "`{command}` fails");
    }

    fn address(word: &str) {
        let bare = matches!(word, "0.0.0.0" | "[::]").then(|| format!("udp://{word}:0"));
        let is_full = word.contains("://") && !word.ends_with("://");
        let Some(address) = bare.or(is_full.then(|| word.to_owned())) else { return };
        let uri: Uri = address.parse().unwrap_or_else(|e| panic!("{address}: {e}"));
        uri.clone().without_options().unwrap_or_else(|e| panic!("{address} cannot be called: {e}"));
        if uri.host.parse::<IpAddr>().is_err() {
            return; // a name of another host
        }
        // Any port: another process may have this one.
        match Nexus::bind(&Uri { port: 0, ..uri }.to_string()) {
            Ok(_) => {}
            Err(BindError::Control { source, .. }) if address.contains("[::1]") => {
                println!("skipped: {address}, as this system has no IPv6 loopback: {source}");
            }
            Err(e) => panic!("{address} cannot be bound: {e}"),
        }
    }

    fn setting(name: &str) {
        let settings =
            [include_str!("../src/config.rs"), include_str!("../../proto/src/config.rs")];
        let methods = [
            include_str!("../src/rpc.rs"),
            include_str!("../src/run/connections.rs"),
            include_str!("../src/run/event_loop.rs"),
            include_str!("../src/rpc/send.rs"),
        ];
        let exists = |sources: &[&str], what: String| sources.iter().any(|s| s.contains(&what));
        if let Some(name) = name.strip_prefix("Config::") {
            assert!(exists(&settings, format!("pub {name}:")), "there is no Config::{name}");
        }
        if let Some(name) = name.strip_prefix("Rpc::") {
            assert!(exists(&methods, format!("pub fn {name}")), "there is no Rpc::{name}");
        }
        if name.starts_with("COURSER_") {
            assert_eq!(name, "COURSER_SHM_DIR", "a variable that is read");
        }
    }

    #[test]
    fn advice_that_cannot_be_followed_is_detected() {
        for text in [
            "it broke; write shm://127.0.0.1:31850?trust=1",
            "it broke; bind udp://192.0.2.1:0",
            "it broke; run `rm -r` on it",
            "it broke; raise Config::nothing",
            "it broke; call Rpc::nothing",
            "it broke; set COURSER_NOTHING",
        ] {
            let tried = std::panic::catch_unwind(|| try_out(text));
            assert!(tried.is_err(), "{text}");
        }
        try_out("it broke; bind udp://0.0.0.0:31850, or raise Config::slots (`ulimit -n`)");
    }
}

#[test]
fn a_text_without_an_advice_at_its_end_is_detected() {
    assert!(has_advice("it broke; check the cable") && has_advice("a: b; call c (executed)"));
    for text in ["it broke", "it broke; alas", "it broke: check the cable", ""] {
        assert!(!has_advice(text), "{text}");
    }
}

#[test]
fn memory_error_texts_end_with_an_advice() {
    let arena = |error: ConfigError| error.to_string();
    let asked = (1 << 16, 1 << 16);
    check(
        include_str!("../../buf/src/arena.rs"),
        &[
            arena(ConfigError::Limit(1)),
            arena(ConfigError::DataPerPacket(1)),
            arena(ConfigError::Headroom(4096)),
            no_memory().to_string(),
            AllocError::Exhausted { asked: 1, in_use: asked.0, limit: asked.1 }.to_string(),
            AllocError::Source(map()).to_string(),
        ],
    );
    check(include_str!("../../buf/src/mem.rs"), &texts![map()]);
    let full = SetLenError::Capacity { asked: 9, capacity: 8 };
    check(include_str!("../../buf/src/msgbuf.rs"), &texts![full, SetLenError::Shared]);
}

#[test]
fn transport_error_texts_end_with_an_advice() {
    let inner = || MemError::InUse(1, 2);
    let name = "no.such.host".to_owned();
    let open = |text: &str| {
        let spec: BindSpec = text.parse().unwrap();
        any::open(&spec).map(|_| ()).unwrap_err()
    };
    check(
        include_str!("../../net/src/error.rs"),
        &texts![
            open("smoke://hill:1"),
            OpenError::Uri(uri()),
            open("mem://127.0.0.1:0?colour=1"),
            open("mem://127.0.0.1:0?depth=x"),
            OpenError::Host(name, broken()),
            OpenError::Zone(zone()),
            OpenError::in_use(inner()),
            OpenError::transport(inner()),
        ],
    );
    check(include_str!("../../net/src/uri.rs"), &texts![uri()]);
    check(include_str!("../../net/src/uri/host.rs"), &texts![zone()]);
    check(include_str!("../../net/src/any.rs"), &texts![any::RegisterError("UDP".into())]);
    check(
        include_str!("../../net/src/transport.rs"),
        &texts![
            PathError::Unsupported(Addr::from_socket(here()), "udp", Addr::from_socket(here())),
            PathError::TooMany(3),
            PathError::Io(Addr::from_socket(here()), broken()),
        ],
    );
    check(
        include_str!("../../net/src/mem.rs"),
        &texts![
            inner(),
            MemError::Range("depth", 0, 9),
            MemError::Unspecified(IpAddr::from([0; 4])),
            MemError::Networks(64),
            MemError::EventFd(broken()),
        ],
    );
    check(
        include_str!("../../net/src/udp/config.rs"),
        &texts![
            UdpError::InUse(here()),
            UdpError::NoSuchAddress(here()),
            UdpError::NotPermitted(here()),
            UdpError::NoFamily(here()),
            UdpError::MaxFrame(1),
            UdpError::MaxPaths(0),
            UdpError::Io(here(), broken()),
        ],
    );
    check(
        include_str!("../../net/src/shm/config.rs"),
        &texts![
            ShmError::NotThisMachine(IpAddr::from([10, 0, 0, 1])),
            ShmError::InUse(1),
            ShmError::MaxFrame(0),
            ShmError::MaxPeers(0),
            ShmError::Ring { slots: 3, data_bytes: 5 },
            ShmError::Directory { dir: "/dev/shm/c".into(), why: Unsafe::Foreign },
            ShmError::LongPath("/long".into()),
            ShmError::Io { what: "cannot set up shared memory", source: broken() },
            ShmError::Use {
                what: "cannot lock the directory",
                dir: "/run/c".into(),
                source: broken(),
                advice: "check that its parent exists".into(),
            },
            Unsafe::NoDirectory,
            Unsafe::Foreign,
            Unsafe::Open,
        ],
    );
    let fault = |text: &str| -> FaultSyntax { text.parse::<FaultPlan>().unwrap_err() };
    check(
        include_str!("../../net/src/fault/text.rs"),
        &texts![
            fault("delay=1"),
            fault("loss=2"),
            fault("reorder=0.1,span=0"),
            fault("loss=0.1,loss=0.1"),
            fault("loss=0.6,corrupt=0.6"),
        ],
    );
}

#[test]
fn protocol_error_texts_end_with_an_advice() {
    let invalid = ConnectRefuseReason::Invalid(proto::InvalidField::Slots);
    check(
        include_str!("../../proto/src/session/connect.rs"),
        &texts![
            ConnectRefuseReason::TooManySessions { limit: 1 },
            ConnectRefuseReason::NoCredits { queue: 1, credits: 2 },
            invalid,
            ConnectRefuseReason::PathTooSmall { max_frame: 1, needed: 2 },
            ConnectRefuseReason::NoEndpoint,
            ConnectRefuseReason::TooManyOfPeer { limit: 1 },
            ConnectRefuseReason::ShuttingDown,
            ConnectRefuseReason::NoPath,
            ConnectRefuseReason::TooManyOfAddress { limit: 1 },
            ConnectRefuseReason::TooManyPathsOfPeer { limit: 1 },
            ConnectRefuseReason::TooManyPaths { limit: 1 },
            ConnectRefuseReason::Exhausted,
            ConnectError::TooManySessions { limit: 1 },
            ConnectError::NoCredits { queue: 1, credits: 2 },
            ConnectError::BadAnswer,
            ConnectError::Closed,
        ],
    );
    check(
        include_str!("../../proto/src/session/control.rs"),
        &texts![
            ControlError::NotCourser,
            ControlError::Version { theirs_oldest: 1, theirs_newest: 2, ours: 3 },
            ControlError::Refused(ControlRefusal::Exhausted),
            ControlError::TooLong(1 << 20),
            ControlError::Undecodable,
            ControlRefusal::Exhausted,
            ControlRefusal::Connections,
            ControlRefusal::Other,
        ],
    );
    let unknown: UnknownRecovery = "hope".parse::<Recovery>().unwrap_err();
    check(include_str!("../../proto/src/loss/recovery.rs"), &texts![unknown]);
    let config = proto::Config { slots: 3, ..proto::Config::default() };
    check(include_str!("../../proto/src/config.rs"), &texts![config.validate().unwrap_err()]);
    check(
        include_str!("../../proto/src/error.rs"),
        &texts![
            SessionEnd::Unreachable,
            SessionEnd::Unanswered,
            SessionEnd::Refused(ConnectRefuseReason::NoEndpoint),
            SessionEnd::BadAnswer,
            SessionEnd::NoPath,
            SessionEnd::PeerFailed,
            SessionEnd::EndpointGone,
            SessionEnd::Evicted,
            SessionEnd::DatapathSilent,
            SessionEnd::Closed,
            SessionEnd::Unknown,
            RejectReason::NoSession(SessionEnd::Closed),
            RejectReason::NotClient,
            RejectReason::QueueFull { limit: 1 },
            RejectReason::MessagesFull { limit: 1 },
            RejectReason::TooLarge { bytes: 2, limit: 1 },
            ReplyError::Gone,
            ReplyError::OtherEndpoint,
            ReplyError::TooLarge { bytes: 2, limit: 1 },
            ReplyError::NoMemory(no_memory()),
        ],
    );
}

#[test]
fn call_error_texts_end_with_an_advice() {
    let statuses =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 99].map(Status::from_code);
    let unknown = statuses.iter().filter(|status| **status == Status::Other).count();
    assert_eq!(unknown, 1, "a new status needs a row");
    assert_eq!(Status::from_code(17), Status::Other, "a new status needs a row");
    let errors = [
        CallError::NotConnected(SessionEnd::Unanswered),
        CallError::PeerFailed(Executed::Maybe),
        CallError::DatapathSilent(Executed::Never),
        CallError::Closed(Executed::Yes),
        CallError::DeadlineExceeded(Executed::Maybe),
        CallError::Cancelled(Executed::Never),
        CallError::NoMemory { response_bytes: 1 },
        CallError::ResponseTooLarge { response_bytes: 2, limit: 1 },
    ];
    for error in errors.into_iter().chain(statuses.map(CallError::Server)) {
        assert!(has_advice(&error.to_string()), "{error}");
    }
    assert_eq!(size_of::<CallError>(), 12, "small enough to copy");
}

#[test]
fn library_error_texts_end_with_an_advice() {
    let kinds = [
        io::ErrorKind::AddrInUse,
        io::ErrorKind::AddrNotAvailable,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::Other,
    ];
    for kind in kinds {
        let error = BindError::Control { addr: here().to_string(), source: kind.into() };
        assert!(has_advice(&error.to_string()), "{error}");
        recommended::try_out(&error.to_string());
    }
    let arena: io::Error = broken();
    let config = proto::Config { slots: 3, ..proto::Config::default() };
    let request =
        Arena::new(Arc::new(Heap::default()), ArenaConfig::default()).unwrap().alloc(1).unwrap();
    check(
        include_str!("../src/error.rs"),
        &texts![
            BindError::Uri(uri()),
            BindError::Host("everywhere".into()),
            BindError::Control { addr: here().to_string(), source: broken() },
            BindError::Transport(OpenError::transport(MemError::InUse(1, 2))),
            BindError::Config(config.validate().unwrap_err()),
            BindError::Duration {
                name: "rto.0",
                value: Duration::ZERO,
                range: "from 1 us to 60 s"
            },
            BindError::Memory(map().to_string()),
            BindError::System(arena),
            BindError::Setting { name: "worker_queue", value: 0, range: "from 1 to 1,048,576" },
            BindError::Forked,
            BindError::TooManyEndpoints,
            SessionError::Uri(uri()),
            SessionError::Scheme { ours: "udp", theirs: "shm".into() },
            SessionError::Local(ConnectError::BadAnswer),
            SessionError::Dial(DialError::Stopped),
            SessionError::Refused(ConnectRefuseReason::NoEndpoint),
            SessionError::Path(PathError::TooMany(1).to_string()),
            SessionError::Timeout { server: "udp://db1:1".into(), after_ms: 7 },
            SessionError::PeerFailed(LostReason::Closed),
            SessionError::EndpointGone,
            SessionError::Evicted,
            SessionError::DatapathSilent {
                scheme: "udp",
                datapath: here().to_string(),
                packet: 1400
            },
            SessionError::VirtualTime,
            SessionError::Forked,
            SessionError::Gone,
            CallRejected { reason: RejectReason::NotClient, request },
            WorkerError::Disabled,
            WorkerError::Threads(broken()),
            RunError::Wait(broken()),
            RunError::VirtualTime,
            RunError::Forked,
        ],
    );
}

#[test]
fn blocking_call_error_texts_end_with_an_advice() {
    let rejected = || CallWaitReason::Rejected(RejectReason::NotClient);
    check(include_str!("../src/task/time.rs"), &texts![Elapsed]);
    check(include_str!("../src/task/join.rs"), &texts![TaskEnded]);
    check(
        include_str!("../src/rpc/call_wait.rs"),
        &texts![
            CallWaitError { reason: rejected(), request: None },
            rejected(),
            CallWaitReason::Failed(CallError::Closed(Executed::Never)),
            CallWaitReason::Run(RunError::VirtualTime),
        ],
    );
}

#[test]
fn error_texts_of_clients_and_servers_end_with_an_advice() {
    let text = |error: SessionError| error.to_string().into();
    let lost = SessionError::PeerFailed(LostReason::Closed);
    check(
        include_str!("../src/error/failure.rs"),
        &texts![
            CallFailure::Rejected(RejectReason::NotClient),
            CallFailure::Failed(CallError::Closed(Executed::Never)),
            CallFailure::NoMemory(no_memory()),
            CallFailure::NotConnected { server: "udp://db1:1".into(), reason: text(lost.clone()) },
            CallFailure::Lost {
                server: "udp://db1:1".into(),
                reason: text(lost),
                executed: Executed::Maybe
            },
            CallFailure::Method(courser::service::MethodMismatch::Unknown(Arc::new(
                courser::service::UnknownMethod { service: "a".into(), method: "b".into() }
            ))),
            CallFailure::Middleware {
                reason: "a token is missing".into(),
                executed: Executed::Never
            },
            CallFailure::Forked,
            CallFailure::Stopped,
        ],
    );
    check(
        include_str!("../src/error/client.rs"),
        &texts![
            ClientError::Bind(BindError::Forked),
            ClientError::Session(SessionError::EndpointGone),
            ClientError::Service(
                courser::service::HelloError::NoService { service: "a".into(), others: "b".into() }
                    .to_string()
            ),
            ClientError::Thread(broken()),
            ClientError::Setting { name: "ClientBuilder::sessions", value: 0, most: 9 },
            ClientError::VirtualTime,
            ClientError::Forked,
            ClientError::Stopped,
        ],
    );
    check(
        include_str!("../src/error/server.rs"),
        &texts![
            ServerError::Bind(BindError::Forked),
            ServerError::Thread(broken()),
            ServerError::Setting { name: "endpoints", value: 0, most: 9 },
            ServerError::Taken { req_type: 0x4000 },
            ServerError::VirtualTime,
            ServerError::Panicked,
            ServerError::RuntimeEnded,
            ServerError::Run(RunError::Forked),
        ],
    );
}

#[test]
fn control_connection_error_texts_end_with_an_advice() {
    let dial =
        |kind: io::ErrorKind| DialError::Connect { addr: here(), cause: Arc::new(kind.into()) };
    for kind in [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::HostUnreachable,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::WouldBlock,
        io::ErrorKind::AddrNotAvailable,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::Other,
    ] {
        assert!(has_advice(&dial(kind).to_string()), "{}", dial(kind));
        recommended::try_out(&dial(kind).to_string());
    }
    let (addr, cause) = ("[fe80::1]:9".parse().unwrap(), io::ErrorKind::InvalidInput.into());
    let link_local = DialError::Connect { addr, cause: Arc::new(cause) }.to_string();
    assert!(has_advice(&link_local) && link_local.contains("[fe80::1%eth0]:9"), "{link_local}");
    for exhausted in [rustix::io::Errno::MFILE, rustix::io::Errno::NOMEM] {
        let text = PathError::Io(Addr::from_socket(here()), exhausted.into()).to_string();
        assert!(has_advice(&text) && text.contains("`ulimit -n`"), "{text}");
    }
    let full = io::Error::from_raw_os_error(24);
    let full = DialError::Connect { addr: here(), cause: Arc::new(full) };
    assert!(has_advice(&full.to_string()), "{full}");
    let second = Duration::from_secs(1);
    let silent = LostReason::Silent { after: second, paused: Duration::ZERO };
    assert!(has_advice(&silent.to_string()), "{silent}");
    check(
        include_str!("../src/error/control.rs"),
        &texts![
            DialError::Resolve { host: "db1".into(), cause: Arc::new(broken()) },
            DialError::Zone(zone()),
            full,
            DialError::Timeout { addr: here().to_string(), after: second },
            DialError::NoGreeting { addr: here(), after: second },
            DialError::Handshake { addr: here(), cause: ControlError::NotCourser },
            DialError::TooManyConnections { limit: 1 },
            DialError::Stopped,
            LostReason::Closed,
            LostReason::Io(Arc::new(broken())),
            LostReason::Protocol(ControlError::Undecodable),
            LostReason::NotReading { pending: 1 },
            LostReason::Silent { after: 2 * second, paused: second },
            LostReason::NoGreeting(second),
            LostReason::Unused(second),
            LostReason::Scarce,
            LostReason::NotRunning { pending: 1 },
            LostReason::Stopped,
        ],
    );
}

#[test]
fn error_texts_of_services_end_with_an_advice() {
    use courser::service::{
        DecodeError, EncodeError, HelloError, MetadataError, MethodMismatch, MidStreamError,
        Mismatch, RegisterError, RpcError, ShapeMismatch, StreamError, TraceParentError,
        UnknownMethod,
    };
    let (codec, name) = ("postcard", || "Kv".to_owned());
    let encode = || EncodeError::TooLarge { limit: 1 };
    let decode = || DecodeError::Trailing { left: 1 };
    let failure = || courser::CallFailure::Stopped;
    let detail = || "hit the end".into();
    let unknown = || Arc::new(UnknownMethod { service: name(), method: name() });
    let shape = || {
        let text = || "fn(u32) -> (), error none".to_owned();
        let (service, method, difference) = (name(), name(), "u32 and i32".to_owned());
        Arc::new(ShapeMismatch { service, method, difference, client: text(), server: text() })
    };
    type Own = RpcError<StreamError>;
    check(
        include_str!("../src/error/service.rs"),
        &texts![
            Own::Service(StreamError::Unknown),
            Own::Call(failure()),
            Own::UnknownMethod(unknown()),
            Own::ShapeMismatch(shape()),
            Own::Encode(encode()),
            Own::Decode(decode()),
            Own::Denied("a text; of the server".into()),
            Own::Unauthenticated("a text; of the server".into()),
            Own::TooMany { reason: "a text".into(), retry_after: Duration::from_millis(5) },
            Own::FewSlots { slots: 2, needed: 4 },
            Own::Stream(StreamError::Unknown),
            Own::MidStream(MidStreamError::ShuttingDown { items: 7 }),
            MidStreamError::ShuttingDown { items: 7 },
            MidStreamError::Call(failure()),
            MidStreamError::Encode(encode()),
            MidStreamError::Decode(decode()),
            MidStreamError::Closed,
            encode(),
            EncodeError::NoMemory(no_memory()),
            EncodeError::Codec { codec, detail: detail() },
            EncodeError::TooDeep { levels: 128 },
            EncodeError::Remote("a text; of the server".into()),
            DecodeError::Codec { codec, detail: detail() },
            decode(),
            DecodeError::Form("an empty response"),
            DecodeError::TooDeep { levels: 128 },
            DecodeError::Elements,
            DecodeError::HeapLimit { limit: 1 },
            DecodeError::HeapFull { limit: 1 },
            DecodeError::NoMemory(no_memory()),
            // The server names the cause, with what to do.
            DecodeError::Remote(decode().to_string().into()),
            DecodeError::RemoteFull(DecodeError::HeapFull { limit: 1 }.to_string().into()),
            DecodeError::RemoteLimit(DecodeError::HeapLimit { limit: 1 }.to_string().into()),
            StreamError::Unknown,
            StreamError::Sequence,
            StreamError::Open,
            StreamError::Direction,
            StreamError::TooMany,
            StreamError::Limit,
            StreamError::Other,
        ],
    );
    check(
        include_str!("../src/error/register.rs"),
        &texts![
            RegisterError::Taken { service: "Kv", number: 0x4000 },
            RegisterError::Full { service: "Kv", methods: 500, left: 400 },
            RegisterError::Name { service: "Kv" },
        ],
    );
    check(
        include_str!("../src/error/method.rs"),
        &texts![
            unknown(),
            shape(),
            MethodMismatch::Unknown(unknown()),
            MethodMismatch::Shape(shape()),
        ],
    );
    check(
        include_str!("../src/service/context/metadata.rs"),
        &texts![
            MetadataError::Key { key: "K".into() },
            MetadataError::Control { key: "k".into() },
            MetadataError::Pairs,
            MetadataError::TooLarge { bytes: 5_000 },
        ],
    );
    check(include_str!("../src/service/context/trace.rs"), &texts![TraceParentError]);
    let mismatch = Mismatch { service: name(), client_codec: name(), server_codec: name() };
    let no_service = HelloError::NoService { service: name(), others: name() };
    check(
        include_str!("../src/error/hello.rs"),
        &texts![
            HelloError::Mismatch(Box::new(mismatch)),
            no_service,
            HelloError::Denied { service: name(), reason: "a text; of the server".into() },
            HelloError::Call(failure()),
            HelloError::Connect(SessionError::Gone.into()),
            HelloError::Encode(encode()),
            HelloError::Decode(decode()),
        ],
    );
}

/// The text of each error attribute of a source file.
fn literals(source: &str) -> Vec<&str> {
    let attributes = source.split("#[error(").skip(1);
    attributes.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

#[test]
fn errors_of_the_harness_and_of_the_simulator_end_with_an_advice() {
    let mut count = 0;
    for source in [
        include_str!("../../kit/src/affinity.rs"),
        include_str!("../../../lab/bench/src/line.rs"),
        include_str!("../../../lab/bench/src/netns.rs"),
        include_str!("../../../lab/bench/src/rpc/error.rs"),
        include_str!("../../../lab/bench/src/rpc/load.rs"),
        include_str!("../../../lab/bench/src/rpc/raw.rs"),
        include_str!("../../../lab/bench/src/window.rs"),
        include_str!("../../sim/src/fabric/topology.rs"),
        include_str!("../../../lab/experiments/src/declare/error.rs"),
        include_str!("../../sim/src/world/mod.rs"),
    ] {
        for text in literals(source) {
            let more = ["add", "change", "end", "install", "repeat"];
            let last = text.rsplit_once("; ").map_or("", |(_, advice)| advice);
            // The text of another error, which has its own advice, or the permitted values.
            let ends = ["{0}", "{source}", "{why}", " must be {limits}"];
            let is_known = more.iter().any(|verb| last.starts_with(verb))
                || ends.iter().any(|end| text.ends_with(end));
            assert!(is_known || has_advice(text), "no advice: {text}");
            count += 1;
        }
    }
    assert!(count > 35, "{count}");
}
