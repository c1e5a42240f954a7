//! Peers: other endpoints in one incarnation, with the state that all sessions with them share.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};

use courser_buf::{Addr, PathId};

use crate::config::Config;
use crate::credits::CreditPool;
use crate::integrity::Protection;
use crate::path::Path;
use crate::wire::{FRAME_HEADER, PACKET_HEADER, UncheckedFrame};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// A connect that the other side has not answered; no frame is sent or accepted.
    Tentative,
    /// Agreed with the other side.
    Live,
}

/// No frame to this peer was begun.
pub(crate) const NO_FRAME: u64 = u64::MAX;

/// The endpoint of a peer, and the control connection of all sessions with it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Party {
    pub(crate) endpoint_id: u64,
    pub(crate) control: u64,
}

/// See the module's documentation. In order of use: a small RPC needs the fields at the front.
#[derive(Debug)]
pub(crate) struct Peer {
    // Fields for ingress validation and for the header of a frame.
    pub(crate) addr: Addr,
    /// The first word of its frames without flags, if that shows that they are its own; `None`: frames
    /// are checked part by part.
    front: Option<NonZeroU64>,
    pub(crate) rx_cookie: u32,
    pub(crate) tx_cookie: u32,
    pub(crate) remote: u32,
    pub(crate) data_per_packet: u16,
    pub(crate) state: PeerState,
    pub(crate) protection: Protection,
    /// The transport's number of the destination.
    pub(crate) path_id: PathId,
    /// Number of the newest frame to this peer in the transmit batch, or [`NO_FRAME`]. Frames are
    /// numbered as they are begun; those that have left are not open.
    pub(crate) open_frame: u64,
    /// Its number in the table.
    number: u32,
    pub(crate) credits: CreditPool,
    pub(crate) path: Path,
    /// At least one session with it has [`crate::Recovery::Selective`].
    pub(crate) selective: bool,
    /// A gap packet to it is queued.
    pub(crate) gap_queued: bool,
    pub(crate) party: Party,
    pub(crate) sessions: u32,
    /// This endpoint is the client: it has dialed the peer's address, and goes on sending to it.
    dialed: bool,
}

/// An endpoint's number and its address.
pub(crate) type PeerName = (u64, Addr);

impl Peer {
    pub(crate) fn tentative(rx_cookie: u32, cfg: &Config) -> Self {
        Peer {
            addr: Addr { host: 0, port: 0 },
            front: None,
            rx_cookie,
            tx_cookie: 0,
            remote: 0,
            data_per_packet: 0,
            state: PeerState::Tentative,
            protection: Protection::NONE,
            path_id: PathId(u32::MAX),
            open_frame: NO_FRAME,
            number: 0,
            credits: CreditPool::new(),
            path: Path::new(cfg),
            selective: false,
            gap_queued: false,
            party: Party::default(),
            sessions: 0,
            dialed: false,
        }
    }

    /// Its number in the table.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// This endpoint is the client of the peer.
    pub(crate) fn set_dialed(&mut self) {
        self.dialed = true;
    }

    /// Returns whether this endpoint is the client of the peer.
    pub(crate) fn is_dialed(&self) -> bool {
        self.dialed
    }

    /// Sum of the pools for the requests of either side, packets.
    fn pools(&self) -> u64 {
        u64::from(self.credits.limit()) + u64::from(self.credits.granted())
    }

    /// The part of [`Peer::pools`] that is reserved for a connect in progress.
    fn reserved(&self) -> u64 {
        if self.state == PeerState::Tentative { self.pools() } else { 0 }
    }

    /// Returns whether the first word of a frame shows that the frame is its own.
    #[inline(always)]
    pub(crate) fn is_front_of(&self, frame: &UncheckedFrame<'_>) -> bool {
        self.front.is_some_and(|front| frame.begins_with(front.get()))
    }

    /// Both sides have agreed on the size of packets and on the protection of frames: frames are
    /// accepted from now on.
    pub(crate) fn agree(&mut self, data_per_packet: u16, protection: Protection) {
        self.state = PeerState::Live;
        self.data_per_packet = data_per_packet;
        self.protection = protection;
        self.front = protection.front(data_per_packet, self.rx_cookie);
    }

    /// Largest frame that both sides agreed on.
    #[inline]
    pub(crate) fn max_frame(&self) -> usize {
        FRAME_HEADER + PACKET_HEADER + usize::from(self.data_per_packet)
    }
}

/// The state of a path before the packets of a frame that is a signal for its controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSignal {
    pub(crate) peer: u32,
    /// Units in flight, and units sent so far.
    pub(crate) in_flight: u32,
    pub(crate) sent: u32,
}

/// The table of peers. Dereferences to the slice of its entries.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// The random number that identifies this incarnation of the endpoint.
    pub(crate) own_id: u64,
    entries: Vec<Option<Peer>>,
    vacant: Vec<u32>,
    /// Live peers by endpoint number and address: one for each control connection between the two, or
    /// several of which the last one serves later connects.
    pub(crate) known: BTreeMap<PeerName, Vec<u32>>,
    /// Peers without a session that a connect in progress may need, and their control connections.
    pub(crate) lingering: Vec<(u32, u64)>,
    /// Addresses that peers had stated at connect, of those that have moved.
    stated: BTreeMap<u32, Addr>,
}

/// Sums of the credit pools of all peers. Not in their table: a flow that has a peer changes its pools.
#[derive(Debug, Default)]
pub(crate) struct PoolSums {
    /// The pools in both directions, and the reservations of connects in progress, packets.
    pub(crate) granted: u64,
    /// The part of it that is reserved.
    pub(crate) reserved: u64,
}

impl PoolSums {
    /// Changes the pools of a peer, and the sums with them.
    pub(crate) fn change<R>(&mut self, p: &mut Peer, change: impl FnOnce(&mut Peer) -> R) -> R {
        self.remove(p);
        let result = change(p);
        self.add(p);
        result
    }

    fn add(&mut self, p: &Peer) {
        self.granted += p.pools();
        self.reserved += p.reserved();
    }

    /// A peer is removed.
    pub(crate) fn remove(&mut self, p: &Peer) {
        self.granted -= p.pools();
        self.reserved -= p.reserved();
    }
}

impl Peers {
    /// No peers, of an endpoint with this number.
    pub(crate) fn new(own_id: u64) -> Self {
        Peers { own_id, ..Peers::default() }
    }

    /// The peer of that number.
    #[inline(always)]
    pub(crate) fn at(&self, peer: u32) -> Option<&Peer> {
        self.entries.get(peer as usize)?.as_ref()
    }

    /// The peer of that number.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, peer: u32) -> Option<&mut Peer> {
        self.entries.get_mut(peer as usize)?.as_mut()
    }

    /// The peer of that number, if it is live.
    pub(crate) fn live(&self, peer: u32) -> Option<&Peer> {
        self.at(peer).filter(|p| p.state == PeerState::Live)
    }

    /// Returns whether the peer of that number is live, with that party, and has this cookie there.
    pub(crate) fn is_with(&self, peer: u32, party: Party, cookie: u32) -> bool {
        let is_it = |p: &Peer| p.party == party && p.tx_cookie == cookie;
        self.at(peer).is_some_and(|p| p.state == PeerState::Live && is_it(p))
    }

    pub(crate) fn add(&mut self, peer: Peer) -> u32 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[at as usize] = Some(Peer { number: at, ..peer });
        at
    }

    /// Removes a peer from all tables.
    pub(crate) fn remove(&mut self, peer: u32) -> Option<Peer> {
        let removed = self.entries.get_mut(peer as usize)?.take()?;
        self.vacant.push(peer);
        // Its number may be reused soon.
        self.lingering.retain(|&(lingering, _)| lingering != peer);
        let name = self.name(&removed);
        self.stated.remove(&peer);
        if let Some(peers) = self.known.get_mut(&name) {
            peers.retain(|&at| at != peer);
            if peers.is_empty() {
                self.known.remove(&name);
            }
        }
        Some(removed)
    }

    /// The endpoint of a peer, and the address that it had stated at connect.
    pub(crate) fn name(&self, peer: &Peer) -> PeerName {
        let stated = self.stated.get(&peer.number()).copied();
        (peer.party.endpoint_id, stated.unwrap_or(peer.addr))
    }

    /// The name of the peer of that number.
    pub(crate) fn name_of(&self, number: u32) -> Option<PeerName> {
        self.at(number).map(|peer| self.name(peer))
    }

    /// Gives a peer another address. Its name stays.
    pub(crate) fn relocate(&mut self, number: u32, to: Addr) {
        let Some(peer) = self.entries.get_mut(number as usize).and_then(Option::as_mut) else {
            return;
        };
        self.stated.entry(number).or_insert(peer.addr);
        peer.addr = to;
    }

    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Option<Peer>>()
    }
}

impl Deref for Peers {
    type Target = [Option<Peer>];
    fn deref(&self) -> &[Option<Peer>] {
        &self.entries
    }
}

impl DerefMut for Peers {
    fn deref_mut(&mut self) -> &mut [Option<Peer>] {
        &mut self.entries
    }
}
