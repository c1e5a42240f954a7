//! The request types of benchmarks, served by `courser serve` and by the server process of
//! benchmarks.

use courser::{Rpc, Transport};

use super::tasks::{Echo, TypedServer};

use crate::clock::Clock;

/// Answers with the request.
pub const ECHO: u16 = 1;

/// Answers a request with [`RECEIPT`] bytes.
pub const SINK: u16 = 2;

/// Length of the response of [`SINK`]: the length of the request in 8 bytes, little-endian, then
/// zeros.
pub const RECEIPT: usize = 32;

/// Answers with the request, in whose first bytes it writes its [`Stamps`]. Only between the two sides
/// of a benchmark.
pub const STAMP: u16 = 4;

/// The type of one-way messages, whose sender counts them when they are acknowledged. Only between the
/// two sides of a benchmark.
pub const MESSAGE: u16 = 5;

/// Answers with the request, by an async handler; the client's calls are futures. Only between the two
/// sides of a benchmark.
pub const AWAITED: u16 = 6;

/// In place of a request type: the echo of a typed service, of 32 bytes.
pub const TYPED: u16 = 7;

/// When the server has received a request and when it has answered it, by its clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// First instruction of the handler.
    pub received_ns: u64,
    /// The response is complete.
    pub answered_ns: u64,
}

impl Stamps {
    /// Bytes of both stamps: the smallest request of [`STAMP`].
    pub const LEN: usize = 16;

    fn write(self, answer: &mut [u8]) {
        answer[..8].copy_from_slice(&self.received_ns.to_le_bytes());
        answer[8..Self::LEN].copy_from_slice(&self.answered_ns.to_le_bytes());
    }

    /// The stamps of a response; `None` if it is too short.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let (received, rest) = answer.split_first_chunk()?;
        let received_ns = u64::from_le_bytes(*received);
        Some(Self { received_ns, answered_ns: u64::from_le_bytes(*rest.first_chunk()?) })
    }

    /// The latency of one way, without synchronized clocks: half of the time between the client's
    /// stamps without the time at the server, `((t4 - t1) - (t3 - t2)) / 2` `[SG section III-B]`.
    pub fn one_way_ns(self, sent_ns: u64, answer_ns: u64) -> u64 {
        let at_server_ns = self.answered_ns.saturating_sub(self.received_ns);
        answer_ns.saturating_sub(sent_ns).saturating_sub(at_server_ns) / 2
    }
}

/// Registers the handlers of [`STAMP`], [`MESSAGE`], [`AWAITED`] and [`TYPED`].
pub fn register_timed<T: Transport>(rpc: &mut Rpc<T>, clock: Clock) {
    rpc.on(STAMP, move |cx, request| {
        let received_ns = clock.now_ns();
        // A request without room for the stamps gets an answer of another length, which is an error.
        let _ = cx.reply_with(request.len().max(Stamps::LEN), |answer| {
            answer[..request.len()].copy_from_slice(&request);
            Stamps { received_ns, answered_ns: clock.now_ns() }.write(answer);
        });
    });
    rpc.on_message(MESSAGE, |_, message| {
        std::hint::black_box(message.first());
    });
    rpc.on_async(AWAITED, |request| std::future::ready(request.to_vec()));
    // The only service of a new endpoint.
    let added = rpc.add_service(TypedServer::local(Echo));
    debug_assert!(added.is_ok());
}

/// Registers [`ECHO`] and [`SINK`].
pub fn register<T: Transport>(rpc: &mut Rpc<T>) {
    rpc.on(ECHO, |cx, request| cx.reply(request));
    rpc.on(SINK, |cx, request| {
        let len = request.len() as u64;
        // The client gets a failure as the error of its call.
        let _ = cx.reply_with(RECEIPT, |receipt| {
            receipt.fill(0);
            receipt[..8].copy_from_slice(&len.to_le_bytes());
        });
    });
}

/// The request length in a receipt; `None` for any other response.
pub fn receipt_len(receipt: &[u8]) -> Option<u64> {
    let len = receipt.first_chunk().filter(|_| receipt.len() == RECEIPT)?;
    Some(u64::from_le_bytes(*len))
}

#[cfg(test)]
mod tests {
    use courser_net::{MemConfig, MemNetwork};

    use super::*;

    #[test]
    fn one_way_latency_is_half_of_the_round_trip_without_the_server() {
        // The clocks differ by hours.
        let stamps = Stamps { received_ns: 9_000_000_000_100, answered_ns: 9_000_000_000_400 };
        assert_eq!(stamps.one_way_ns(1_000, 21_300), 10_000);
        let mut answer = [0xff; 64];
        stamps.write(&mut answer);
        assert_eq!(Stamps::read(&answer), Some(stamps));
        assert_eq!(answer[Stamps::LEN..], [0xff; 64 - Stamps::LEN]);
        assert_eq!(Stamps::read(&answer[..Stamps::LEN - 1]), None);
        // Clocks that run at different speeds, or a wrong answer, make no negative time.
        assert_eq!(Stamps { answered_ns: u64::MAX, ..stamps }.one_way_ns(1_000, 21_300), 0);
        assert_eq!(Stamps { answered_ns: 0, ..stamps }.one_way_ns(1_000, 1_800), 400);
    }

    /// The stamps are readings of the server's clock, which is the client's here: between the client's
    /// two, in order, and not equal around work that takes time.
    #[test]
    fn stamps_are_times_at_which_the_server_had_the_request_and_the_answer() {
        let nexus = courser::Nexus::bind("mem://127.0.0.1:0").expect("binds");
        let (network, host) = (MemNetwork::new(), std::net::Ipv4Addr::LOCALHOST);
        let host = u128::from(host.to_ipv6_mapped());
        let endpoint = || {
            let transport = network.endpoint(MemConfig { host, ..MemConfig::default() });
            nexus.endpoint_on(transport.expect("a transport")).expect("an endpoint")
        };
        let (mut server, mut client) = (endpoint(), endpoint());
        let clock = Clock::new();
        register_timed(&mut server, clock.clone());
        let session = client.connect(&nexus.local_uri()).expect("connects");
        // Long enough that copying it takes many readings' time.
        let len = 1 << 20;
        for _ in 0..3 {
            let request = client.alloc(len).expect("memory");
            let (tell, told) = std::sync::mpsc::channel();
            let sent_ns = clock.now_ns();
            let call = client.call(session, STAMP, request, move |_, done| {
                let answer = done.result.expect("an answer");
                let _ = tell.send((answer.len(), Stamps::read(&answer)));
            });
            call.expect("a call");
            let (answered, stamps) = loop {
                let _ = (client.poll(), server.poll());
                if let Ok(answered) = told.try_recv() {
                    break answered;
                }
            };
            let answer_ns = clock.now_ns();
            assert_eq!(answered, len);
            let Stamps { received_ns, answered_ns } = stamps.expect("stamps");
            assert!(sent_ns < received_ns && answered_ns < answer_ns, "{stamps:?}");
            assert!(received_ns < answered_ns, "{stamps:?}");
        }
    }

    #[test]
    fn receipts_are_read_by_length() {
        let mut receipt = [0; RECEIPT];
        receipt[..8].copy_from_slice(&(8_u64 << 20).to_le_bytes());
        assert_eq!(receipt_len(&receipt), Some(8 << 20));
        assert_eq!(receipt_len(&receipt[1..]), None);
        assert_eq!(receipt_len(&[]), None);
    }
}
