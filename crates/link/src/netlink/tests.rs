use netlink_sys::protocols::NETLINK_USERSOCK;

use super::*;

#[test]
fn a_reading_that_could_not_begin_is_repeated() {
    let mut netlink = Netlink::open().expect("opens");
    // The kernel does not receive messages of this protocol.
    let mut refusing = Socket::new(NETLINK_USERSOCK).expect("a socket");
    refusing.set_non_blocking(true).expect("sets");
    for reading in [Reading::None, Reading::Links, Reading::Neighbours] {
        std::mem::swap(&mut netlink.socket, &mut refusing);
        netlink.reading = reading;
        netlink.is_outdated = reading == Reading::None;
        let refused = if netlink.is_outdated {
            netlink.poll(&mut |event| panic!("{event:?}"))
        } else {
            // The end of a table: length, type, flags, number, sender, result.
            let end: [u32; 5] = [20, libc::NLMSG_DONE as u32, 1, 0, 0];
            let end = end.map(u32::to_ne_bytes).concat();
            netlink.messages(&end, &mut |event| panic!("{event:?}"))
        };
        assert!(refused.is_err(), "{reading:?}");
        std::mem::swap(&mut netlink.socket, &mut refusing);
        let mut events = Vec::new();
        for _ in 0..1000 {
            netlink.poll(&mut |event| events.push(event)).expect("reads");
            if events.last() == Some(&Event::End) {
                break;
            }
        }
        assert_eq!((events.first(), events.last()), (Some(&Event::Begin), Some(&Event::End)));
    }
}
