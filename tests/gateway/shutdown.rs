//! A gateway that goes away tells its clients so.

use tokio::net::TcpStream;

use crate::support::*;

#[tokio::test]
async fn sockets_are_closed_with_1001_and_nobody_is_accepted_any_more() {
    let gateway = Gateway::start().await;
    let address = gateway.address();
    let reliable = gateway.reliable("a").await;
    let plain = gateway.json("b").await;
    let stopped = gateway.begin_shut_down();
    tokio::join!(stopped, reliable.expect_close(1001), plain.expect_close(1001));
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_was_acknowledged_before_goes_out_before_the_close() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=100 {
        publisher.done(publish("g", n, "x")).await;
    }
    let reading = async {
        for n in 1..=100 {
            subscriber.expect(message(n, "g", "p", "x")).await;
        }
        subscriber.expect_close(1001).await;
    };
    tokio::join!(gateway.begin_shut_down(), reading, publisher.expect_close(1001));
}

#[tokio::test]
async fn a_client_that_does_not_answer_delays_the_end_by_seconds_only() {
    let gateway = Gateway::start().await;
    let silent = gateway.reliable("a").await;
    gateway.shut_down().await;
    drop(silent);
}

#[tokio::test]
async fn a_connection_without_a_request_does_not_delay_the_end() {
    let gateway = Gateway::start().await;
    let idle = TcpStream::connect(gateway.address()).await.unwrap();
    gateway.shut_down().await;
    drop(idle);
}
