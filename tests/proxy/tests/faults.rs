//! The proxy between a plain TCP client and an echo server: every fault at exact offsets, from both sides' view.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a step that fails is the test's failure")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use oncewire_proxy::{
    Action, Direction, Ending, Fault, Proxy, ProxyError, RandomFaults, Reached, State, Target,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const UP: Direction = Direction::ClientToServer;
const DOWN: Direction = Direction::ServerToClient;

/// How long a wait that should end may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a stream ended, as its reader saw it.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Fin,
    Reset,
}

/// What the echo server saw of one connection.
#[derive(Debug)]
struct Seen {
    bytes: Vec<u8>,
    end: End,
}

/// Echoes, and reports each connection when it ends.
async fn echo_server() -> (SocketAddr, mpsc::UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                let mut buffer = [0; 1024];
                let end = loop {
                    match stream.read(&mut buffer).await {
                        Ok(0) => break End::Fin,
                        Err(_) => break End::Reset,
                        Ok(read) => {
                            bytes.extend_from_slice(&buffer[..read]);
                            if stream.write_all(&buffer[..read]).await.is_err() {
                                break End::Reset;
                            }
                        }
                    }
                };
                let _ = sender.send(Seen { bytes, end });
            });
        }
    });
    (address, receiver)
}

async fn proxy_before(upstream: SocketAddr) -> Proxy {
    Proxy::start("127.0.0.1:0".parse().unwrap(), upstream).await.unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it should have happened by now")
}

/// Connects, sends and reads until the end. A reset can come before the connecting side has noticed that it is connected.
async fn talk(address: SocketAddr, text: &[u8]) -> (Vec<u8>, End) {
    match TcpStream::connect(address).await {
        Ok(mut client) => {
            let _ = client.write_all(text).await;
            read_to_end(&mut client).await
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            (Vec::new(), End::Reset)
        }
    }
}

async fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match within(stream.read(&mut buffer)).await {
            Ok(0) => return (bytes, End::Fin),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                return (bytes, End::Reset);
            }
        }
    }
}

async fn exchange(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    let mut answer = vec![0; text.len()];
    within(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, text);
}

fn fault(direction: Direction, after_bytes: u64, action: Action) -> Fault {
    Fault { direction, after_bytes, action }
}

#[tokio::test]
async fn without_faults_bytes_and_ends_pass_through() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let large = vec![7; 300_000];
    let (mut reader, mut writer) = client.split();
    let mut answer = vec![0; large.len()];
    let (written, read) =
        within(async { tokio::join!(writer.write_all(&large), reader.read_exact(&mut answer)) }).await;
    written.unwrap();
    read.unwrap();
    assert_eq!(answer, large);
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await, (Vec::new(), End::Fin));
    let seen = within(seen.recv()).await.unwrap();
    assert_eq!((seen.bytes.len(), seen.end), (large.len(), End::Fin));

    within(proxy.wait_for(Reached { stopped: 1, ..Reached::default() })).await;
    let report = proxy.report();
    assert_eq!((report.accepted, report.forwarding, report.faults), (1, 0, 0));
    assert_eq!(report.client_to_server_bytes, 300_000);
    assert_eq!(report.server_to_client_bytes, 300_000);
    assert_eq!(report.connections[0].ending, Some(Ending::Closed));
}

#[tokio::test]
async fn a_reset_by_one_peer_reaches_the_other() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"hello").await;
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(within(seen.recv()).await.unwrap().end, End::Reset);
    within(proxy.wait_for(Reached { stopped: 1, ..Reached::default() })).await;
    assert_eq!(proxy.report().connections[0].ending, Some(Ending::ClientFailed));
}

#[tokio::test]
async fn a_cut_lets_exactly_so_many_bytes_through_for_every_offset() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let text = b"exactly these bytes";
    let mut number = 0;
    for (action, end) in [(Action::CutRst, End::Reset), (Action::CutFin, End::Fin)] {
        for offset in 0..=text.len() {
            for direction in [UP, DOWN] {
                number += 1;
                let planned = fault(direction, offset as u64, action);
                assert_eq!(proxy.plan_next(vec![planned]), Ok(number));
                let (answer, client_end) = talk(proxy.address(), text).await;
                assert_eq!(client_end, end, "{planned:?}");
                let seen = within(seen.recv()).await.unwrap();
                assert_eq!(seen.end, end, "{planned:?}");
                match direction {
                    UP => {
                        assert_eq!(seen.bytes, text[..offset]);
                        assert!(text[..offset].starts_with(&answer));
                    }
                    DOWN => {
                        assert_eq!(answer, text[..offset]);
                        assert!(text.starts_with(&seen.bytes));
                    }
                }
                let report = proxy.report().connections.pop().unwrap();
                assert_eq!((report.number, report.fault), (number, Some(planned)));
                assert_eq!((report.state, report.ending), (State::Ended, Some(Ending::Fault)));
            }
        }
    }
    assert_eq!(proxy.report().faults, number);
}

#[tokio::test]
async fn a_fault_from_now_counts_from_now_and_strikes_while_idle_too() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"before").await;
    proxy.fault_after(Target::Current, fault(UP, 3, Action::CutRst)).unwrap();
    exchange(&mut client, b"ab").await;
    client.write_all(b"cdef").await.unwrap();
    assert_eq!(read_to_end(&mut client).await.1, End::Reset);
    assert_eq!(within(seen.recv()).await.unwrap().bytes, b"beforeabc");

    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"idle").await;
    proxy.fault_after(Target::Number(2), fault(DOWN, 0, Action::CutFin)).unwrap();
    assert_eq!(read_to_end(&mut client).await, (Vec::new(), End::Fin));
    assert_eq!(
        proxy.fault_after(Target::Number(9), fault(UP, 0, Action::CutRst)),
        Err(ProxyError::NoSuchConnection)
    );
}

#[tokio::test]
async fn a_cut_of_all_ends_every_connection() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        exchange(&mut client, b"hi").await;
        clients.push(client);
    }
    assert_eq!(proxy.strike_all(Action::CutRst), 5);
    for mut client in clients {
        assert_eq!(read_to_end(&mut client).await.1, End::Reset);
        assert_eq!(within(seen.recv()).await.unwrap().end, End::Reset);
    }
    assert_eq!(proxy.strike(Target::Current, Action::CutRst), Err(ProxyError::NoSuchConnection));
}

#[tokio::test]
async fn a_stall_keeps_bytes_and_sockets_until_it_is_lifted() {
    let (server, _seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    proxy.plan(1, vec![fault(DOWN, 4, Action::Stall), fault(DOWN, 8, Action::Stall)]).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    client.write_all(b"0123456789").await.unwrap();
    let mut answer = [0; 4];
    for part in [b"0123", b"4567"] {
        within(client.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, part);
        let faults = if part == b"0123" { 1 } else { 2 };
        within(proxy.wait_for(Reached { faults, ..Reached::default() })).await;
        assert_eq!(client.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(proxy.report().connections[0].state, State::Forwarding);
        proxy.resume(DOWN);
    }
    let mut rest = [0; 2];
    within(client.read_exact(&mut rest)).await.unwrap();
    assert_eq!(&rest, b"89");
}

#[tokio::test]
async fn a_stalled_direction_stalls_later_connections_too_and_leaves_the_other_direction_alone() {
    let (server, _seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    proxy.stall(DOWN);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    client.write_all(b"through").await.unwrap();
    within(proxy.wait_for(Reached { client_to_server_bytes: 7, ..Reached::default() })).await;
    assert_eq!(proxy.report().server_to_client_bytes, 0);
    proxy.resume(DOWN);
    let mut answer = [0; 7];
    within(client.read_exact(&mut answer)).await.unwrap();
}

#[tokio::test]
async fn a_stalled_connection_can_be_cut() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"x").await;
    proxy.stall(UP);
    client.write_all(b"held back").await.unwrap();
    proxy.strike(Target::Current, Action::CutRst).unwrap();
    assert_eq!(read_to_end(&mut client).await.1, End::Reset);
    assert_eq!(within(seen.recv()).await.unwrap().bytes, b"x");
}

#[tokio::test]
async fn when_the_client_dies_the_server_hears_nothing() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    proxy.plan(1, vec![fault(UP, 5, Action::ClientDies)]).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    client.write_all(b"hello world").await.unwrap();
    assert_eq!(read_to_end(&mut client).await.1, End::Reset);
    within(proxy.wait_for(Reached { stopped: 1, ..Reached::default() })).await;
    let report = proxy.report();
    assert_eq!((report.connections[0].state, report.forwarding), (State::HalfOpen, 0));
    assert!(seen.try_recv().is_err(), "the server's socket must still be open");

    proxy.strike_all(Action::CutFin);
    let seen = within(seen.recv()).await.unwrap();
    assert_eq!((seen.bytes.as_slice(), seen.end), (&b"hello"[..], End::Fin));
}

#[tokio::test]
async fn when_the_server_dies_the_client_hears_nothing_and_may_go_on_talking() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"hello").await;
    proxy.strike(Target::Current, Action::ServerDies).unwrap();
    assert_eq!(within(seen.recv()).await.unwrap().end, End::Reset);
    client.write_all(&vec![1; 100_000]).await.unwrap();
    assert_eq!(client.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(proxy.report().connections[0].state, State::HalfOpen);

    drop(client);
    within(async {
        while proxy.report().connections[0].state != State::Ended {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(proxy.report().connections[0].survivor_closed);
}

#[tokio::test]
async fn refused_connections_get_a_reset_and_no_number() {
    let (server, _seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    proxy.refuse(2);
    for _ in 0..2 {
        assert_eq!(talk(proxy.address(), b"").await, (Vec::new(), End::Reset));
    }
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"accepted").await;
    proxy.refuse(u64::MAX);
    for _ in 0..3 {
        assert_eq!(talk(proxy.address(), b"").await.1, End::Reset);
    }
    proxy.refuse(0);
    let mut other = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut other, b"accepted").await;
    exchange(&mut client, b"still there").await;
    let report = proxy.report();
    assert_eq!((report.accepted, report.refused, report.forwarding), (2, 5, 2));
}

#[tokio::test]
async fn an_unreachable_server_resets_the_client_until_the_upstream_changes() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = proxy_before(unused).await;
    assert_eq!(talk(proxy.address(), b"").await.1, End::Reset);
    assert_eq!(proxy.report().connections[0].ending, Some(Ending::Unreachable));

    let (server, _seen) = echo_server().await;
    proxy.set_upstream(server);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"moved").await;
}

#[tokio::test]
async fn random_faults_strike_where_the_seed_says() {
    let (server, _seen) = echo_server().await;
    let random = RandomFaults {
        seed: 42,
        bytes_min: 1,
        bytes_max: 2_000,
        connections_max: 20,
        actions: vec![Action::CutRst, Action::CutFin],
    };
    for _ in 0..2 {
        let proxy = proxy_before(server).await;
        proxy.set_random(Some(random.clone()));
        for number in 1..=20 {
            talk(proxy.address(), &[0; 3_000]).await;
            let report = proxy.report().connections.pop().unwrap();
            assert_eq!(report.number, number);
            assert!(random.draw(number).contains(&report.fault.unwrap()));
        }
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        exchange(&mut client, &[0; 3_000]).await;
    }
}

#[tokio::test]
async fn a_plan_for_a_past_connection_is_refused() {
    let (server, _seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    exchange(&mut client, b"one").await;
    assert_eq!(proxy.plan(1, Vec::new()), Err(ProxyError::TooLate(1)));
    assert_eq!(proxy.plan_next(Vec::new()), Ok(2));
}

#[tokio::test]
async fn plans_are_bounded() {
    let (server, _seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    for number in 1..=oncewire_proxy::PLANS_MAX as u64 {
        proxy.plan(number, Vec::new()).unwrap();
    }
    let beyond = oncewire_proxy::PLANS_MAX as u64 + 1;
    assert_eq!(proxy.plan(beyond, Vec::new()), Err(ProxyError::TooManyPlans));
    assert_eq!(proxy.plan(1, Vec::new()), Ok(()), "a plan can be replaced at the limit");
}

#[tokio::test]
async fn a_dropped_proxy_takes_its_connections_along() {
    let (server, mut seen) = echo_server().await;
    let proxy = proxy_before(server).await;
    let address = proxy.address();
    let mut client = TcpStream::connect(address).await.unwrap();
    exchange(&mut client, b"hi").await;
    drop(proxy);
    read_to_end(&mut client).await;
    within(seen.recv()).await.unwrap();
    within(async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
