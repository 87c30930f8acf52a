//! A WebSocket under the scenario's control: what is said, what is heard, and how it ends.

use std::future::poll_fn;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::Error;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::{Wire, a_while, leave, soon};

/// Which session a socket belongs to, and the proof of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The session.
    pub connection_id: String,
    /// Its reconnection token.
    pub reconnection_token: String,
}

/// What a socket hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A text frame that holds JSON.
    Message(Value),
    /// A binary frame.
    Binary(Vec<u8>),
    /// A close frame: its code, or 1005 without one, and its reason.
    Close(u16, String),
    /// The end of the stream, or a reset, without a close frame.
    Dropped,
}

/// A data frame as a raw client sees it: the bare payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bare {
    /// A text frame.
    Text(String),
    /// A binary frame.
    Binary(Vec<u8>),
}

impl Bare {
    /// A text frame.
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// A binary frame.
    pub fn binary(bytes: &[u8]) -> Self {
        Self::Binary(bytes.to_vec())
    }
}

/// An open socket.
pub struct Socket {
    stream: WebSocketStream<Wire>,
    identity: Option<Identity>,
    user_id: Option<String>,
    pings: usize,
    pongs: usize,
    settled: u64,
}

impl Socket {
    /// Ack ids from here on are used by [`Socket::settle`].
    const SETTLING_ACK_IDS: u64 = 1 << 60;

    pub(super) fn new(stream: WebSocketStream<Wire>) -> Self {
        Self { stream, identity: None, user_id: None, pings: 0, pongs: 0, settled: Self::SETTLING_ACK_IDS }
    }

    /// Reads the `connected` message of a new session.
    pub async fn read_connected(&mut self) {
        let connected = self.read().await;
        assert_eq!(connected["type"], "system", "{connected}");
        assert_eq!(connected["event"], "connected", "{connected}");
        self.user_id = connected["userId"].as_str().map(str::to_owned);
        self.identity = Some(Identity {
            connection_id: connected["connectionId"].as_str().unwrap().to_owned(),
            reconnection_token: connected["reconnectionToken"].as_str().unwrap_or_default().to_owned(),
        });
    }

    /// The session that `connected` named.
    pub fn identity(&self) -> Identity {
        self.identity.clone().unwrap()
    }

    /// The user that `connected` named.
    pub fn user_id(&self) -> Option<&str> {
        self.user_id.as_deref()
    }

    /// WebSocket pings that have come so far.
    pub fn pings(&self) -> usize {
        self.pings
    }

    /// WebSocket pongs that have come so far.
    pub fn pongs(&self) -> usize {
        self.pongs
    }

    /// Sends a JSON message.
    pub async fn send(&mut self, message: Value) {
        self.send_text(&message.to_string()).await;
    }

    /// Sends text as it is.
    pub async fn send_text(&mut self, text: &str) {
        soon(self.stream.send(Message::text(text))).await.unwrap();
    }

    /// Sends several messages in as few writes as possible.
    pub async fn send_together(&mut self, messages: impl IntoIterator<Item = Value>) {
        for message in messages {
            soon(self.stream.feed(Message::text(message.to_string()))).await.unwrap();
        }
        soon(self.stream.flush()).await.unwrap();
    }

    /// Sends a binary frame.
    pub async fn send_binary(&mut self, bytes: &[u8]) {
        soon(self.stream.send(Message::binary(bytes.to_vec()))).await.unwrap();
    }

    /// Sends a frame as it is.
    pub async fn send_bare(&mut self, frame: &Bare) {
        match frame {
            Bare::Text(text) => self.send_text(text).await,
            Bare::Binary(bytes) => self.send_binary(bytes).await,
        }
    }

    /// Tries to send; `false` when the socket has not taken it within a time.
    pub async fn try_send(&mut self, message: Message, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, self.stream.send(message)).await, Ok(Ok(())))
    }

    /// Writes bytes that are no frame of the library's making.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        soon(self.stream.get_mut().write_all(bytes)).await.unwrap();
        soon(self.stream.get_mut().flush()).await.unwrap();
    }

    /// What comes next; pings and pongs are counted and passed over.
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = Event> {
        soon(async {
            loop {
                match heard(&mut self.stream).await {
                    Some(Ok(Message::Text(text))) => {
                        return Event::Message(serde_json::from_str(&text).unwrap());
                    }
                    Some(Ok(Message::Binary(bytes))) => return Event::Binary(bytes.to_vec()),
                    Some(Ok(Message::Close(frame))) => {
                        return frame.map_or(Event::Close(1005, String::new()), |frame| {
                            Event::Close(frame.code.into(), frame.reason.to_string())
                        });
                    }
                    Some(Ok(Message::Ping(_))) => self.pings += 1,
                    Some(Ok(Message::Pong(_))) => self.pongs += 1,
                    Some(Ok(Message::Frame(_))) => {}
                    Some(Err(_)) | None => return Event::Dropped,
                }
            }
        })
    }

    /// The text of the next message, letter by letter.
    #[track_caller]
    pub fn read_text(&mut self) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        let next = self.read_bare();
        async move {
            match next.await {
                Bare::Text(text) => text,
                other => panic!("expected a text, heard {other:?}: {caller}"),
            }
        }
    }

    /// The next message as it is.
    #[track_caller]
    pub fn read_bare(&mut self) -> impl Future<Output = Bare> {
        let caller = std::panic::Location::caller();
        async move {
            match self.next_bare_or_close().await {
                Ok(bare) => bare,
                Err((code, reason)) => panic!("expected a message, heard close {code} {reason}: {caller}"),
            }
        }
    }

    /// The next message as it is, or the code and reason of a close frame.
    pub async fn next_bare_or_close(&mut self) -> Result<Bare, (u16, String)> {
        loop {
            match soon(heard(&mut self.stream)).await {
                Some(Ok(Message::Text(text))) => return Ok(Bare::Text(text.to_string())),
                Some(Ok(Message::Binary(bytes))) => return Ok(Bare::Binary(bytes.to_vec())),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                other => panic!("expected a message or a close frame, heard {other:?}"),
            }
        }
    }

    /// The next message has to be just this.
    #[track_caller]
    pub fn expect_bare(&mut self, expected: Bare) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let next = self.read_bare();
        async move { assert_eq!(next.await, expected, "{caller}") }
    }

    /// The next message.
    #[track_caller]
    pub fn read(&mut self) -> impl Future<Output = Value> {
        let next = self.next();
        async move {
            match next.await {
                Event::Message(message) => message,
                other => panic!("expected a message, heard {other:?}"),
            }
        }
    }

    /// The next message has to be this one.
    #[track_caller]
    pub fn expect(&mut self, expected: Value) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let next = self.next();
        async move { assert_eq!(next.await, Event::Message(expected), "{caller}") }
    }

    /// The next thing has to be a close frame with this code; tells its reason.
    #[track_caller]
    pub fn expect_close_reason(&mut self, code: u16) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        let next = self.next();
        async move {
            match next.await {
                Event::Close(heard, reason) if heard == code => reason,
                other => panic!("expected a close with {code}, heard {other:?}: {caller}"),
            }
        }
    }

    /// The next thing has to be a close frame with this code.
    #[track_caller]
    pub fn expect_close(mut self, code: u16) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            match self.next().await {
                Event::Close(heard, _) if heard == code => {}
                other => panic!("expected a close with {code}, heard {other:?}: {caller}"),
            }
        }
    }

    /// The socket has to end without a close frame.
    #[track_caller]
    pub fn expect_cut(mut self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { assert_eq!(self.next().await, Event::Dropped, "{caller}") }
    }

    /// Sends a request; the next message has to be its ack, which it returns.
    #[track_caller]
    pub fn ask(&mut self, request: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            self.send(request.clone()).await;
            let answer = self.next().await;
            match answer {
                Event::Message(answer) if answer["type"] == "ack" && answer["ackId"] == request["ackId"] => {
                    answer
                }
                other => panic!("expected the ack of {request}, heard {other:?}: {caller}"),
            }
        }
    }

    /// Sends a request that has to succeed, its ack being the next message.
    #[track_caller]
    pub fn done(&mut self, request: Value) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let asked = self.ask(request);
        async move {
            let ack = asked.await;
            assert_eq!(ack["success"], true, "{ack}: {caller}");
        }
    }

    /// Sends a request that has to fail with this error, its ack being the next message.
    #[track_caller]
    pub fn refused(&mut self, request: Value, name: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let name = name.to_owned();
        let asked = self.ask(request);
        async move {
            let ack = asked.await;
            assert_eq!(ack["success"], false, "{ack}: {caller}");
            assert_eq!(ack["error"]["name"], name.as_str(), "{ack}: {caller}");
            assert!(ack["error"]["message"].is_string(), "{ack}: {caller}");
        }
    }

    /// All messages that were on their way: those that come before the ack of a request made now. What the gateway
    /// acknowledged to others before is among them.
    pub async fn settle(&mut self) -> Vec<Value> {
        self.settled += 1;
        let ack_id = self.settled;
        self.send(leave("a group that nobody is in", ack_id)).await;
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                Event::Message(ack) if ack["type"] == "ack" && ack["ackId"] == ack_id => return messages,
                Event::Message(message) => messages.push(message),
                other => panic!("heard {other:?} after {messages:?}"),
            }
        }
    }

    /// All messages that come before a close frame with this code.
    pub async fn settle_until_close(&mut self, code: u16) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                Event::Message(message) => messages.push(message),
                Event::Close(heard, _) if heard == code => return messages,
                other => panic!("heard {other:?} after {messages:?}"),
            }
        }
    }

    /// The next message but for pongs, which may overtake, has to be this one.
    #[track_caller]
    pub fn expect_passing_over_pongs(&mut self, expected: Value) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            loop {
                match self.next().await {
                    Event::Message(pong) if pong["type"] == "pong" => {}
                    heard => break assert_eq!(heard, Event::Message(expected), "{caller}"),
                }
            }
        }
    }

    /// Nothing may be on its way.
    #[track_caller]
    pub fn expect_quiet(&mut self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { assert_eq!(self.settle().await, Vec::<Value>::new(), "{caller}") }
    }

    /// Nothing may be on its way, where requests are refused because the disk is full. Pings are answered still.
    #[track_caller]
    pub fn expect_quiet_on_a_full_disk(&mut self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.send(serde_json::json!({"type": "ping"})).await;
            a_while().await;
            assert_eq!(self.next().await, Event::Message(serde_json::json!({"type": "pong"})), "{caller}");
        }
    }

    /// Closes with a code and waits for the answer.
    pub async fn close(mut self, code: u16) -> Event {
        let frame = CloseFrame { code: code.into(), reason: Default::default() };
        soon(self.stream.send(Message::Close(Some(frame)))).await.unwrap();
        self.closed().await
    }

    /// Closes without a code and waits for the answer.
    pub async fn close_without_code(mut self) -> Event {
        soon(self.stream.send(Message::Close(None))).await.unwrap();
        self.closed().await
    }

    async fn closed(mut self) -> Event {
        let answer = self.next().await;
        assert_eq!(self.next().await, Event::Dropped, "after the answer to a close");
        answer
    }

    /// Resets the connection: the gateway gets no close frame.
    pub fn cut(self) {
        SockRef::from(self.stream.get_ref().tcp()).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Ends the stream towards the gateway in order, without a close frame, and goes on reading.
    pub async fn half_close(&mut self) {
        soon(self.stream.get_mut().shutdown()).await.unwrap();
    }

    /// Reads bytes without a look at frames, so that none is answered, until the gateway ends the stream.
    pub async fn read_to_end_unanswered(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = soon(self.stream.get_mut().read_to_end(&mut bytes)).await;
        bytes
    }

    /// The next bytes have to be a close frame with this code; it is not answered. Nothing may have been read ahead.
    pub async fn expect_close_frame_unanswered(&mut self, code: u16) {
        let mut head = [0; 4];
        soon(self.stream.get_mut().read_exact(&mut head)).await.unwrap();
        let [high, low] = code.to_be_bytes();
        assert_eq!((head[0], &head[2..]), (0x88, &[high, low][..]));
    }

    /// Answers the gateway's close with a code of its own, as some clients do, and waits for the end of the connection.
    pub async fn answer_close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: Default::default() };
        soon(self.stream.send(Message::Close(Some(frame)))).await.unwrap();
        self.read_to_end_unanswered().await;
    }

    /// Sends a WebSocket ping.
    pub async fn ping(&mut self, payload: &'static [u8]) {
        soon(self.stream.send(Message::Ping(Bytes::from_static(payload)))).await.unwrap();
    }

    /// The payload of the next WebSocket pong.
    pub async fn read_pong(&mut self) -> Vec<u8> {
        loop {
            match soon(heard(&mut self.stream)).await {
                Some(Ok(Message::Pong(payload))) => return payload.to_vec(),
                Some(Ok(_)) => {}
                other => panic!("expected a pong, heard {other:?}"),
            }
        }
    }
}

/// The next frame. What a send that was given up has left behind is written meanwhile.
async fn heard(stream: &mut WebSocketStream<Wire>) -> Option<Result<Message, Error>> {
    poll_fn(|context| {
        let _ = stream.poll_flush_unpin(context);
        stream.poll_next_unpin(context)
    })
    .await
}
