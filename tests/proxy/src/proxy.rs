//! One listening socket, the numbering of its connections, and the commands that break them.
//!
//! Knows which connection gets which fault; how a fault is carried out is the connection's business.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::connection::{Connection, Observer};
use crate::fault::{Action, Direction, Fault, Target};
use crate::random::RandomFaults;
use crate::report::{CONNECTIONS_REPORTED_MAX, Report, State};

/// The most connections that one proxy serves at a time; further ones wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 4_096;

/// The most connection numbers that may have a plan waiting for them.
pub const PLANS_MAX: usize = 65_536;

const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Why a command could not be carried out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// [`PLANS_MAX`] plans are waiting already.
    #[error("too many plans are waiting for connections")]
    TooManyPlans,
    /// The plan is for a connection that was accepted already.
    #[error("connection {0} was accepted already")]
    TooLate(u64),
    /// No such connection forwards.
    #[error("no such connection forwards")]
    NoSuchConnection,
}

/// What [`Proxy::wait_for`] waits for: each number given must be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reached {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Connections that ended or were left half-open.
    pub stopped: u64,
    /// Bytes forwarded to servers.
    pub client_to_server_bytes: u64,
    /// Bytes forwarded to clients.
    pub server_to_client_bytes: u64,
}

/// A proxy that listens on one address and forwards to another. Dropping it closes everything that it holds.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    inner: Mutex<Inner>,
    totals: watch::Sender<Reached>,
}

struct Inner {
    upstream: SocketAddr,
    plans: HashMap<u64, Vec<Fault>>,
    random: Option<RandomFaults>,
    refusals_left: u64,
    stalled: [bool; 2],
    connections: VecDeque<Arc<Connection<Shared>>>,
}

impl Proxy {
    /// Listens on `listen` (port 0 picks one) and forwards to `upstream`, without faults so far.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub async fn start(listen: SocketAddr, upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                upstream,
                plans: HashMap::new(),
                random: None,
                refusals_left: 0,
                stalled: [false; 2],
                connections: VecDeque::new(),
            }),
            totals: watch::Sender::new(Reached::default()),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends later connections to another server; those that are open stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.shared.inner.lock().upstream = upstream;
    }

    /// Gives connection number `number`, which must not have been accepted yet, its faults. Several may wait in each
    /// direction; the first one that is not a stall ends the connection. An earlier plan for that number is replaced.
    ///
    /// # Errors
    /// [`ProxyError::TooLate`] and [`ProxyError::TooManyPlans`].
    pub fn plan(&self, number: u64, faults: Vec<Fault>) -> Result<(), ProxyError> {
        let mut inner = self.shared.inner.lock();
        if number <= self.shared.totals.borrow().accepted {
            return Err(ProxyError::TooLate(number));
        }
        if inner.plans.len() >= PLANS_MAX && !inner.plans.contains_key(&number) {
            return Err(ProxyError::TooManyPlans);
        }
        inner.plans.insert(number, faults);
        Ok(())
    }

    /// Gives the next connection its faults and returns its number.
    ///
    /// # Errors
    /// [`ProxyError::TooManyPlans`].
    pub fn plan_next(&self, faults: Vec<Fault>) -> Result<u64, ProxyError> {
        let mut inner = self.shared.inner.lock();
        let number = self.shared.totals.borrow().accepted + 1;
        if inner.plans.len() >= PLANS_MAX && !inner.plans.contains_key(&number) {
            return Err(ProxyError::TooManyPlans);
        }
        inner.plans.insert(number, faults);
        Ok(number)
    }

    /// Draws faults for each later connection that has no plan, or stops doing so.
    pub fn set_random(&self, random: Option<RandomFaults>) {
        self.shared.inner.lock().random = random;
    }

    /// Adds a fault to an open connection; its offset counts from now.
    ///
    /// # Errors
    /// [`ProxyError::NoSuchConnection`].
    pub fn fault_after(&self, target: Target, fault: Fault) -> Result<(), ProxyError> {
        self.find(target)?.fault_after(fault);
        Ok(())
    }

    /// Lets an action strike one connection now.
    ///
    /// # Errors
    /// [`ProxyError::NoSuchConnection`].
    pub fn strike(&self, target: Target, action: Action) -> Result<(), ProxyError> {
        self.find(target)?.strike(action, Direction::ClientToServer);
        Ok(())
    }

    /// Lets an action strike all connections now. A cut also ends the half-open ones. Returns how many there were.
    pub fn strike_all(&self, action: Action) -> usize {
        let connections: Vec<_> = self.shared.open().collect();
        for connection in &connections {
            connection.strike(action, Direction::ClientToServer);
        }
        connections.len()
    }

    /// Stops a direction of all connections, later ones included, until [`Proxy::resume`].
    pub fn stall(&self, direction: Direction) {
        self.set_stalled(direction, true);
    }

    /// Lets a direction of all connections flow again, whatever had stalled it.
    pub fn resume(&self, direction: Direction) {
        self.set_stalled(direction, false);
    }

    /// Refuses the next `count` connections with a reset; `u64::MAX` refuses until told otherwise, 0 accepts again.
    pub fn refuse(&self, count: u64) {
        self.shared.inner.lock().refusals_left = count;
    }

    /// What was seen so far.
    pub fn report(&self) -> Report {
        let totals = *self.shared.totals.borrow();
        let inner = self.shared.inner.lock();
        let connections: Vec<_> = inner.connections.iter().map(|connection| connection.report()).collect();
        Report {
            accepted: totals.accepted,
            refused: totals.refused,
            faults: totals.faults,
            forwarding: totals.accepted - totals.stopped,
            client_to_server_bytes: totals.client_to_server_bytes,
            server_to_client_bytes: totals.server_to_client_bytes,
            connections,
        }
    }

    /// Waits until all of `reached` is reached.
    pub async fn wait_for(&self, reached: Reached) {
        self.waiter(reached).await;
    }

    /// A future that waits like [`Proxy::wait_for`] and does not borrow the proxy; it also ends when the proxy is dropped.
    pub fn waiter(&self, reached: Reached) -> impl Future<Output = ()> + Send + use<> {
        let mut totals = self.shared.totals.subscribe();
        async move {
            // Fails only once the proxy is gone.
            let _ = totals.wait_for(|totals| totals.covers(&reached)).await;
        }
    }

    fn find(&self, target: Target) -> Result<Arc<Connection<Shared>>, ProxyError> {
        let mut open = self.shared.open();
        let found = match target {
            Target::Current => open.filter(|connection| connection.state() == State::Forwarding).last(),
            Target::Number(number) => open.find(|connection| connection.number() == number),
        };
        found.ok_or(ProxyError::NoSuchConnection)
    }

    fn set_stalled(&self, direction: Direction, stalled: bool) {
        let mut inner = self.shared.inner.lock();
        inner.stalled[direction.index()] = stalled;
        for connection in &inner.connections {
            connection.set_stalled(direction, stalled);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    /// The connections that hold a socket, oldest first.
    fn open(&self) -> impl Iterator<Item = Arc<Connection<Self>>> + use<> {
        let connections = self.inner.lock().connections.clone();
        connections.into_iter().filter(|connection| connection.state() != State::Ended)
    }

    /// Numbers a new connection, or refuses it.
    fn admit(self: &Arc<Self>) -> Option<(Arc<Connection<Self>>, SocketAddr)> {
        let mut inner = self.inner.lock();
        if inner.refusals_left > 0 {
            if inner.refusals_left != u64::MAX {
                inner.refusals_left -= 1;
            }
            self.totals.send_modify(|totals| totals.refused += 1);
            return None;
        }
        let number = self.totals.borrow().accepted + 1;
        let planned = inner.plans.remove(&number);
        let faults =
            planned.or_else(|| inner.random.as_ref().map(|random| random.draw(number))).unwrap_or_default();
        let connection = Arc::new(Connection::new(number, Arc::clone(self), faults, inner.stalled));
        if inner.connections.len() >= CONNECTIONS_REPORTED_MAX
            && let Some(oldest) =
                inner.connections.iter().position(|connection| connection.state() == State::Ended)
        {
            inner.connections.remove(oldest);
        }
        inner.connections.push_back(Arc::clone(&connection));
        self.totals.send_modify(|totals| totals.accepted += 1);
        Some((connection, inner.upstream))
    }
}

impl Observer for Shared {
    fn forwarded(&self, direction: Direction, bytes: u64) {
        self.totals.send_modify(|totals| match direction {
            Direction::ClientToServer => totals.client_to_server_bytes += bytes,
            Direction::ServerToClient => totals.server_to_client_bytes += bytes,
        });
    }

    fn fault_struck(&self) {
        self.totals.send_modify(|totals| totals.faults += 1);
    }

    fn stopped_forwarding(&self) {
        self.totals.send_modify(|totals| totals.stopped += 1);
    }
}

impl Reached {
    fn covers(&self, other: &Self) -> bool {
        self.accepted >= other.accepted
            && self.refused >= other.refused
            && self.faults >= other.faults
            && self.stopped >= other.stopped
            && self.client_to_server_bytes >= other.client_to_server_bytes
            && self.server_to_client_bytes >= other.server_to_client_bytes
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((client, _)) => serve(&shared, client, &mut connections),
                // The client was gone again, or descriptors ran out: then a pause keeps the loop from spinning.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

fn serve(shared: &Arc<Shared>, client: TcpStream, connections: &mut JoinSet<()>) {
    match shared.admit() {
        Some((connection, upstream)) => {
            connections.spawn(async move { connection.run(client, upstream).await });
        }
        None => {
            // Fails only on a socket that is gone already; the drop then closes what is left of it.
            let _ = client.set_zero_linger();
        }
    }
}
