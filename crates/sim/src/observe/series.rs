//! Links and their queues over time, in intervals of equal length.

use serde_json::{Value, json};

use super::{LinkId, Names};
use crate::Packet;

/// Settings of a time series.
#[derive(Clone, Copy, Debug)]
pub struct SeriesSettings {
    /// Length of an interval, ns, at least 1. It doubles whenever the run exceeds all points
    /// together, so that a series covers the whole run.
    pub interval_ns: u64,
    /// Points per link, at least 2; 40 bytes each for every link that is used.
    pub points: usize,
}

impl Default for SeriesSettings {
    /// 512 points of 10 us at first: 20 KiB a link.
    fn default() -> Self {
        SeriesSettings { interval_ns: 10_000, points: 512 }
    }
}

/// One interval of a link and its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// Bytes sent, as the link counts them, gaps between frames included.
    pub sent_bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost on it.
    pub drops: u64,
    /// Packets marked as they joined its queue.
    pub marks: u64,
    /// Largest number of bytes in its queue.
    pub queue_max_bytes: u64,
}

impl Point {
    fn add(&mut self, later: &Point) {
        self.sent_bytes += later.sent_bytes;
        self.packets += later.packets;
        self.drops += later.drops;
        self.marks += later.marks;
        self.queue_max_bytes = self.queue_max_bytes.max(later.queue_max_bytes);
    }
}

#[derive(Clone, Debug, Default)]
struct Link {
    /// Up to the last interval with an event.
    points: Vec<Point>,
    /// Bytes in the queue now.
    queue_bytes: u64,
}

/// The series of all links.
#[derive(Clone, Debug)]
pub struct Series {
    interval_ns: u64,
    max_points: usize,
    links: Vec<Link>,
}

impl Series {
    /// Empty series.
    pub fn new(settings: SeriesSettings) -> Self {
        Series {
            interval_ns: settings.interval_ns.max(1),
            max_points: settings.points.max(2),
            links: Vec::new(),
        }
    }

    /// The current length of an interval, ns.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The points of a link, from time 0 to the last event there.
    pub fn points(&self, link: LinkId) -> &[Point] {
        self.links.get(link.0 as usize).map_or(&[], |l| &l.points)
    }

    pub(super) fn sent(&mut self, now_ns: u64, link: LinkId, p: &Packet) {
        let point = self.point(now_ns, link);
        point.packets += 1;
        point.sent_bytes += u64::from(p.wire_bytes());
    }

    pub(super) fn dropped(&mut self, now_ns: u64, link: LinkId) {
        self.point(now_ns, link).drops += 1;
    }

    pub(super) fn marked(&mut self, now_ns: u64, link: LinkId) {
        self.point(now_ns, link).marks += 1;
    }

    pub(super) fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        let point = self.point(now_ns, link);
        point.queue_max_bytes = point.queue_max_bytes.max(bytes);
        self.links[link.0 as usize].queue_bytes = bytes;
    }

    /// The point of a time. Intervals since the link's last one repeat the bytes in the queue.
    fn point(&mut self, now_ns: u64, link: LinkId) -> &mut Point {
        while now_ns / self.interval_ns >= self.max_points as u64 {
            self.double();
        }
        let (link, at) = (link.0 as usize, (now_ns / self.interval_ns) as usize);
        if link >= self.links.len() {
            self.links.resize_with(link + 1, Link::default);
        }
        let Link { points, queue_bytes } = &mut self.links[link];
        if at >= points.len() {
            let idle = Point { queue_max_bytes: *queue_bytes, ..Point::default() };
            points.resize(at + 1, idle);
        }
        &mut points[at]
    }

    fn double(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        for link in &mut self.links {
            let len = link.points.len();
            for i in 0..len.div_ceil(2) {
                let mut sum = link.points[2 * i];
                if let Some(later) = link.points.get(2 * i + 1) {
                    sum.add(later);
                }
                link.points[i] = sum;
            }
            link.points.truncate(len.div_ceil(2));
        }
    }

    /// `{"interval_ns", "links": [{"link", "sent_bytes": [..], "packets": [..], ..}]}`, of the
    /// links with events. A list has a value for each interval from time 0 on.
    pub fn to_json(&self, names: &Names) -> Value {
        let used = (0..).map(LinkId).zip(&self.links).filter(|(_, l)| !l.points.is_empty());
        let links = used.map(|(id, l)| {
            let column = |of: fn(&Point) -> u64| l.points.iter().map(of).collect::<Vec<u64>>();
            json!({
                "link": names.link(id),
                "sent_bytes": column(|p| p.sent_bytes),
                "packets": column(|p| p.packets),
                "drops": column(|p| p.drops),
                "marks": column(|p| p.marks),
                "queue_max_bytes": column(|p| p.queue_max_bytes),
            })
        });
        json!({ "interval_ns": self.interval_ns, "links": links.collect::<Vec<Value>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::made::datagram;
    use super::*;

    fn series(points: usize) -> Series {
        Series::new(SeriesSettings { interval_ns: 100, points })
    }

    const L: LinkId = LinkId(2);

    #[test]
    fn events_count_in_their_interval_and_on_their_link() {
        let mut s = series(8);
        let p = datagram(1, vec![0; 34]); // 100 bytes on the wire
        s.sent(0, L, &p);
        s.sent(99, L, &p);
        s.marked(99, L);
        s.sent(100, L, &p);
        s.dropped(350, L);
        let point = |packets, marks, drops| Point {
            sent_bytes: packets * 100,
            packets,
            marks,
            drops,
            queue_max_bytes: 0,
        };
        assert_eq!(s.points(L), [point(2, 1, 0), point(1, 0, 0), point(0, 0, 0), point(0, 0, 1)]);
        assert_eq!(s.points(LinkId(0)), []);
        assert_eq!(s.points(LinkId(9)), []);
    }

    #[test]
    fn a_queue_keeps_its_value_until_it_changes() {
        let mut s = series(8);
        s.queue(10, L, 500);
        s.queue(20, L, 300);
        s.queue(350, L, 0);
        s.queue(360, L, 40);
        s.queue(360, L, 0);
        s.queue(500, L, 0);
        let max: Vec<u64> = s.points(L).iter().map(|p| p.queue_max_bytes).collect();
        assert_eq!(max, [500, 300, 300, 300, 0, 0]);
    }

    #[test]
    fn intervals_double_and_nothing_is_lost() {
        let mut s = series(5);
        let p = datagram(1, vec![0; 34]);
        for t in 0..1_000 {
            s.sent(t, L, &p);
            s.queue(t, LinkId(0), t);
            assert!(s.points(L).len() <= 5);
        }
        assert_eq!(s.interval_ns(), 200);
        let packets: Vec<u64> = s.points(L).iter().map(|p| p.packets).collect();
        assert_eq!(packets, [200; 5]);
        let queue: Vec<u64> = s.points(LinkId(0)).iter().map(|p| p.queue_max_bytes).collect();
        assert_eq!(queue, [199, 399, 599, 799, 999]);
        // The end of time: few steps, few points.
        s.dropped(u64::MAX, L);
        let sum = |of: fn(&Point) -> u64| s.points(L).iter().map(of).sum::<u64>();
        assert_eq!((sum(|p| p.packets), sum(|p| p.drops)), (1_000, 1));
        assert!(s.points(L).len() <= 5);
    }

    #[test]
    fn json_has_a_column_a_measure_for_the_links_in_use() {
        let mut s = series(4);
        s.queue(150, L, 7);
        let want = json!({ "interval_ns": 100, "links": [{
            "link": "link 2", "sent_bytes": [0, 0], "packets": [0, 0], "drops": [0, 0],
            "marks": [0, 0], "queue_max_bytes": [0, 7],
        }]});
        assert_eq!(s.to_json(&Names::default()), want);
    }
}
