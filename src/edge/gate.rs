//! How many connections the whole process lets in: by its descriptors, and from one address.
//!
//! A process that has no descriptor left can't begin a new file of its log, and can't take a client back either. So the
//! last of them are not for everybody:
//!
//! ```text
//! 0 ------------------------------ everybody ------------------------------ 95 % -- recoveries -- 98 % -- nobody -- limit
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::pool::Pool;
use super::turned_away::Strangers;
use crate::config::{AddressRange, Config};
use crate::telemetry::Counters;

/// In this part of the descriptors, in percent, only recoveries are let in.
const RECOVERIES_PERCENT: u64 = 5;
/// In this part nobody is.
const RESERVED_PERCENT: u64 = 2;
/// The same in descriptors, where the limit is so low that a part of it is next to nothing.
const RECOVERIES_MIN: u64 = 16;
const RESERVED_MIN: u64 = 8;

/// How old the count of descriptors that are no connections may be while there are plenty.
const COUNT_AGE_MAX: Duration = Duration::from_secs(1);

/// Where a process finds its descriptors: of Linux, and of others.
const DESCRIPTOR_DIRECTORIES: [&str; 2] = ["/proc/self/fd", "/dev/fd"];

/// Whom there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Everybody,
    Recoveries,
    Nobody,
}

/// What all listeners of a process share: its descriptors, and how many connections each address has.
pub struct Gate {
    /// How many descriptors there may be; none where there is no limit.
    descriptors_max: Option<u64>,
    /// Connections that are open.
    connections: AtomicU64,
    /// Descriptors that are none, as last counted.
    others: AtomicU64,
    counted_at: Mutex<Option<Instant>>,
    addresses: Option<Addresses>,
    /// Where silent connections are to be found, should descriptors run short.
    pools: Mutex<Vec<Weak<Pool>>>,
    strangers: Strangers,
}

/// How many connections each address has.
struct Addresses {
    connections_max: usize,
    trusted: Vec<AddressRange>,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection, from accept to its end: it counts as long as this is there.
pub(super) struct Presence {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
}

impl Gate {
    /// With the limit that the process has now. Whoever is turned away is counted there.
    pub fn new(config: &Config, counters: Arc<Counters>) -> Arc<Self> {
        let descriptors_max = rlimit::Resource::NOFILE.get_soft().ok();
        let descriptors_max = descriptors_max.filter(|max| *max != rlimit::INFINITY);
        Arc::new(Self::with(config, descriptors_max, counters))
    }

    fn with(config: &Config, descriptors_max: Option<u64>, counters: Arc<Counters>) -> Self {
        let addresses = config.connections_per_address_max.map(|connections_max| Addresses {
            connections_max,
            trusted: config.trusted_proxies.clone(),
            connections: Mutex::default(),
        });
        Self {
            descriptors_max,
            connections: AtomicU64::new(0),
            others: AtomicU64::new(0),
            counted_at: Mutex::default(),
            addresses,
            pools: Mutex::default(),
            strangers: Strangers::new(counters),
        }
    }

    /// Where it is told that somebody is turned away.
    pub(super) fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Makes a listener's pool known.
    pub(super) fn add(&self, pool: &Arc<Pool>) {
        self.pools.lock().push(Arc::downgrade(pool));
    }

    /// Counts an accepted connection. None if its address has as many as it may have; `is_bounded` says whether that
    /// counts.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr, is_bounded: bool) -> Option<Presence> {
        let address = match &self.addresses {
            Some(addresses) if is_bounded => addresses.enter(peer)?,
            _ => None,
        };
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(Presence { gate: Arc::clone(self), address })
    }

    /// Whom there is room for now.
    pub(super) fn room(&self) -> Room {
        let Some(max) = self.descriptors_max else { return Room::Everybody };
        let left = max.saturating_sub(self.used(max));
        if left <= reserve(max, RESERVED_PERCENT, RESERVED_MIN) {
            Room::Nobody
        } else if left + self.leaving() <= reserve(max, RECOVERIES_PERCENT, RECOVERIES_MIN) {
            Room::Recoveries
        } else {
            Room::Everybody
        }
    }

    /// Closes silent connections, of whatever listener, until there is room for everybody or no such one is left. Tells
    /// whether there is room then: once they have gone, which takes a moment.
    pub(super) fn make_room(&self) -> bool {
        let Some(max) = self.descriptors_max else { return true };
        let left = max.saturating_sub(self.used(max)) + self.leaving();
        let wanted = (reserve(max, RECOVERIES_PERCENT, RECOVERIES_MIN) + 1).saturating_sub(left);
        let mut pools = self.pools();
        pools.sort_by_key(|pool| std::cmp::Reverse(pool.silent()));
        (0..wanted).all(|_| pools.iter().any(|pool| pool.dismiss_oldest()))
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        self.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Connections that will have given their descriptors back in a moment.
    fn leaving(&self) -> u64 {
        self.pools().iter().map(|pool| pool.leaving()).sum()
    }

    /// How many descriptors are in use. Connections are known; all others are counted now and then, and each time where
    /// it may matter.
    fn used(&self, max: u64) -> u64 {
        let connections = self.connections.load(Ordering::Relaxed);
        let known = connections + self.others.load(Ordering::Relaxed);
        let mut counted_at = self.counted_at.lock();
        let now = Instant::now();
        let is_old = counted_at.is_none_or(|at| now.saturating_duration_since(at) >= COUNT_AGE_MAX);
        if !is_old && known < max / 2 {
            return known;
        }
        let counted = match open_descriptors() {
            Counted::At(count) => count,
            Counted::Only(directory) if is_old => entries(directory),
            Counted::Only(_) | Counted::Not => return known,
        };
        *counted_at = Some(now);
        self.others.store(counted.saturating_sub(connections), Ordering::Relaxed);
        counted.max(connections)
    }
}

/// So many descriptors are a part of all.
fn reserve(max: u64, percent: u64, min: u64) -> u64 {
    (max * percent / 100).max(min)
}

/// What the operating system says at once.
enum Counted {
    /// The number.
    At(u64),
    /// Only a directory to be read through.
    Only(&'static str),
    Not,
}

/// Linux tells the number as the size of the directory, since 6.2.
fn open_descriptors() -> Counted {
    for directory in DESCRIPTOR_DIRECTORIES {
        match std::fs::metadata(directory) {
            Ok(found) if directory.starts_with("/proc") && found.len() > 0 => {
                return Counted::At(found.len());
            }
            Ok(_) => return Counted::Only(directory),
            Err(_) => {}
        }
    }
    Counted::Not
}

fn entries(directory: &str) -> u64 {
    std::fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

impl Addresses {
    /// What the connection counts as; none if it does not count.
    fn enter(&self, peer: IpAddr) -> Option<Option<IpAddr>> {
        let peer = peer.to_canonical();
        if self.trusted.iter().any(|range| range.contains(peer)) {
            return Some(None);
        }
        let address = counted_as(peer);
        let mut connections = self.connections.lock();
        let count = connections.entry(address).or_default();
        if *count >= self.connections_max {
            return None;
        }
        *count += 1;
        Some(Some(address))
    }

    fn leave(&self, address: IpAddr) {
        let mut connections = self.connections.lock();
        if let Some(count) = connections.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&address);
            }
        }
    }
}

/// Whoever has one address of IPv6 has the 64 bits behind its network.
fn counted_as(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.gate.connections.fetch_sub(1, Ordering::Relaxed);
        if let (Some(addresses), Some(address)) = (&self.gate.addresses, self.address) {
            addresses.leave(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(change: impl FnOnce(&mut Config), descriptors_max: Option<u64>) -> Arc<Gate> {
        let mut config = Config::default();
        change(&mut config);
        Arc::new(Gate::with(&config, descriptors_max, Arc::default()))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_last_descriptors_are_for_recoveries_and_the_very_last_for_nobody() {
        let open = match open_descriptors() {
            Counted::At(count) => count,
            _ => entries("/dev/fd"),
        };
        // Other tests open and close some meanwhile.
        let slack = 1000;
        let with_left = |left: u64| gate(|_| {}, Some(open + left));
        assert_eq!(gate(|_| {}, None).room(), Room::Everybody);
        assert_eq!(with_left(10 * (open + slack)).room(), Room::Everybody);
        assert_eq!(gate(|_| {}, Some(1)).room(), Room::Nobody);
        let gate = with_left(100 * slack);
        gate.connections.store(open + 96 * slack, Ordering::Relaxed);
        assert_eq!(gate.room(), Room::Recoveries);
        gate.connections.store(open + 99 * slack, Ordering::Relaxed);
        assert_eq!(gate.room(), Room::Nobody);
    }

    #[test]
    fn a_low_limit_keeps_some_descriptors_all_the_same() {
        assert_eq!((reserve(64, 5, 16), reserve(64, 2, 8)), (16, 8));
        assert_eq!((reserve(20_000, 5, 16), reserve(20_000, 2, 8)), (1000, 400));
    }

    #[test]
    fn one_connection_too_many_from_an_address_is_refused_and_a_freed_place_is_used_again() {
        let gate = gate(|config| config.connections_per_address_max = Some(2), None);
        let first = gate.enter(ip("192.0.2.1"), true);
        let second = gate.enter(ip("::ffff:192.0.2.1"), true);
        assert!(first.is_some() && second.is_some());
        assert!(gate.enter(ip("192.0.2.1"), true).is_none());
        assert!(gate.enter(ip("192.0.2.2"), true).is_some());
        assert!(gate.enter(ip("192.0.2.1"), false).is_some(), "where addresses don't count");
        drop(first);
        assert!(gate.enter(ip("192.0.2.1"), true).is_some());
        drop(second);
        let addresses = gate.addresses.as_ref().unwrap();
        assert!(addresses.connections.lock().is_empty(), "nothing is kept of who has gone");
        assert_eq!(gate.connections.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_addresses_of_one_network_of_ipv6_count_as_one() {
        let gate = gate(|config| config.connections_per_address_max = Some(1), None);
        let _first = gate.enter(ip("2001:db8:1:2::1"), true).unwrap();
        assert!(gate.enter(ip("2001:db8:1:2:ffff::1"), true).is_none());
        assert!(gate.enter(ip("2001:db8:1:3::1"), true).is_some());
    }

    #[test]
    fn trusted_proxies_are_not_counted() {
        let trusted = |config: &mut Config| {
            config.connections_per_address_max = Some(1);
            config.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        };
        let gate = gate(trusted, None);
        let present: Vec<_> = (0..10).map(|_| gate.enter(ip("10.1.2.3"), true)).collect();
        assert!(present.iter().all(Option::is_some));
        let _one = gate.enter(ip("11.1.2.3"), true).unwrap();
        assert!(gate.enter(ip("11.1.2.3"), true).is_none());
    }
}
