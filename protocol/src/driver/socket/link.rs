//! What a socket's reader and writer tell each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

use super::frames::Pongs;

/// That the client has sent a close frame, and the code in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerClose(pub Option<u16>);

/// How the gateway's own side has ended a socket.
#[derive(Debug, Clone)]
pub enum GatewayEnd {
    /// With this close frame.
    Closed(Bytes),
    /// Nothing was heard from the client for long.
    Silent,
    /// Its session has let go of it.
    LetGo,
}

/// The state shared by the reader and the writer of one socket.
#[derive(Debug, Clone)]
pub struct Link(Arc<State>);

/// A link that keeps nothing alive.
#[derive(Debug, Clone)]
pub struct WeakLink(Weak<State>);

#[derive(Debug, Default)]
struct State {
    /// Set by the reader whenever bytes arrive; taken by the writer at each ping.
    is_heard: AtomicBool,
    /// Set while the reader may not read, so that its silence says nothing about the client.
    is_reading_paused: AtomicBool,
    /// Set when the writer is done: nobody reads on for a client that gets no answers.
    is_cut: AtomicBool,
    /// Set when the reader is to give up the message that has come in part.
    is_giving_up: AtomicBool,
    /// Set while there is news for the writer, which looks here first: it is woken for each message, and seldom for
    /// news.
    has_news: AtomicBool,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    pongs: Pongs,
    /// The client's close frame, with its code.
    peer_close: Option<PeerClose>,
    /// How the gateway ends the socket, if it does.
    gateway_end: Option<GatewayEnd>,
    is_reader_done: bool,
    writer: Option<Waker>,
    reader: Option<Waker>,
}

impl Link {
    /// That of a socket that has just been attached.
    #[expect(clippy::new_without_default, reason = "it is not an empty one")]
    pub fn new() -> Self {
        // The upgrade itself was a sign of life.
        let state = State { is_heard: AtomicBool::new(true), ..State::default() };
        Self(Arc::new(state))
    }

    // For whoever looks after memory.

    /// A link that keeps nothing alive.
    pub fn downgrade(&self) -> WeakLink {
        WeakLink(Arc::downgrade(&self.0))
    }

    /// Has the reader give up the message that has come in part, and the socket with it.
    pub fn give_up(&self) {
        let mut news = self.0.news.lock();
        self.0.is_giving_up.store(true, Ordering::Release);
        wake(&mut news.reader);
    }

    // For the reader.

    /// Bytes have arrived.
    pub fn heard(&self) {
        self.0.is_heard.store(true, Ordering::Relaxed);
    }

    /// Reading stops for now, or goes on.
    pub fn set_reading_paused(&self, is_paused: bool) {
        self.0.is_reading_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Has a ping answered.
    pub fn pong(&self, content: &[u8]) {
        let mut news = self.0.news.lock();
        news.pongs.push(content);
        self.0.has_news.store(true, Ordering::Release);
        wake(&mut news.writer);
    }

    /// Notes the client's close. It is answered once the reader is done.
    pub fn peer_closed(&self, close: PeerClose) {
        self.0.news.lock().peer_close = Some(close);
    }

    /// How the gateway has begun to end the socket, if it has.
    pub fn gateway_end(&self) -> Option<GatewayEnd> {
        self.0.news.lock().gateway_end.clone()
    }

    /// Ready when the writer is gone, or the reader is ordered to give up. The task is woken for both.
    pub fn poll_over(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut news = self.0.news.lock();
        register(&mut news.reader, context);
        // Set under the lock, so this look can't miss it.
        if self.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether [`Link::poll_over`] is ready, at a glance.
    pub fn is_over(&self) -> bool {
        self.0.is_cut.load(Ordering::Acquire) || self.0.is_giving_up.load(Ordering::Acquire)
    }

    /// Whether the reader was ordered to give up; the order is followed once.
    pub fn take_giving_up(&self) -> bool {
        self.0.is_giving_up.swap(false, Ordering::AcqRel)
    }

    /// A guard that tells the writer when the reader is gone, however it ends.
    pub fn reader_guard(&self) -> ReaderGuard {
        ReaderGuard(self.clone())
    }

    // For the writer.

    /// Whether the client has given a sign of life since the last look.
    pub fn take_heard(&self) -> bool {
        self.0.is_heard.swap(false, Ordering::Relaxed)
    }

    /// Whether the reader may not read now.
    pub fn is_reading_paused(&self) -> bool {
        self.0.is_reading_paused.load(Ordering::Relaxed)
    }

    /// Notes how the gateway ends the socket, for whoever tells of its end.
    pub fn gateway_ends(&self, end: GatewayEnd) {
        self.0.news.lock().gateway_end = Some(end);
    }

    /// The client's close, as soon as it has been noted.
    pub fn peer_close(&self) -> Option<PeerClose> {
        self.0.news.lock().peer_close
    }

    /// Whether [`Link::poll_reader`] has something to tell.
    pub fn has_news(&self) -> bool {
        self.0.has_news.load(Ordering::Acquire)
    }

    /// Takes the pongs that are due; ready when the reader is done. The task is woken for both.
    pub fn poll_reader(&self, context: &mut Context<'_>, pongs: &mut Pongs) -> Poll<()> {
        let mut news = self.0.news.lock();
        register(&mut news.writer, context);
        pongs.append(&mut news.pongs);
        self.0.has_news.store(news.is_reader_done, Ordering::Release);
        if news.is_reader_done { Poll::Ready(()) } else { Poll::Pending }
    }

    /// A guard that tells the reader when the writer is gone, however it ends.
    pub fn writer_guard(&self) -> WriterGuard {
        WriterGuard(self.clone())
    }
}

/// Held by the reader while it runs.
#[derive(Debug)]
pub struct ReaderGuard(Link);

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let mut news = self.0.0.news.lock();
        news.is_reader_done = true;
        self.0.0.has_news.store(true, Ordering::Release);
        wake(&mut news.writer);
    }
}

/// Held by the writer while it runs.
#[derive(Debug)]
pub struct WriterGuard(Link);

impl Drop for WriterGuard {
    fn drop(&mut self) {
        let mut news = self.0.0.news.lock();
        self.0.0.is_cut.store(true, Ordering::Release);
        wake(&mut news.reader);
    }
}

impl WeakLink {
    /// The link, if anybody else still has it.
    pub fn upgrade(&self) -> Option<Link> {
        self.0.upgrade().map(Link)
    }
}

fn register(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

fn wake(slot: &mut Option<Waker>) {
    if let Some(waker) = slot.take() {
        waker.wake();
    }
}
