//! One attached socket, as the edge holds it.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::driver::socket::submit;
use oncewire_protocol::hub::{Attachment, Input, SocketEnd};
use oncewire_protocol::session::Request;
use oncewire_protocol::wire::UserId;
use tokio::sync::mpsc;

use super::HubClock;
use super::counts::{CountedSocket, LiveCounts};
use super::shard::{Attached, Command};

/// An attached socket. Dropping it without [`AttachedSocket::close`] counts as a lost socket.
pub struct AttachedSocket {
    attachment: Attachment,
    shard: mpsc::Sender<Command>,
    clock: HubClock,
    user_id: Option<UserId>,
    is_closed: bool,
    _counted: CountedSocket,
}

impl AttachedSocket {
    pub(super) fn new(
        Attached { attachment, user_id }: Attached,
        shard: mpsc::Sender<Command>,
        clock: HubClock,
        counts: &Arc<LiveCounts>,
    ) -> Self {
        let _counted = CountedSocket::new(counts);
        Self { attachment, shard, clock, user_id, is_closed: false, _counted }
    }

    /// Whom its session acts for.
    pub fn user_id(&self) -> Option<&UserId> {
        self.user_id.as_ref()
    }

    /// The session and its outbox.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The time of the session's hub, by which its outbox is to be transmitted.
    pub fn clock(&self) -> &HubClock {
        &self.clock
    }

    /// Hands requests to the shard, in order; they count against the socket's bounds until they are settled.
    pub fn submit(&self, requests: Vec<Request>) -> impl Future<Output = ()> {
        // Sent at once: the future has no room for the requests.
        let sending = self.send(Command::Input(submit(&self.attachment, requests)));
        async move {
            if let Some(sending) = sending {
                sending.await;
            }
        }
    }

    /// Returns when so little is pending that the socket may be read on.
    pub async fn ready_to_read(&self) {
        poll_fn(|context| {
            if self.attachment.outbox.lock().may_read(self.attachment.session.epoch, context.waker()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Tells the shard how the socket ended.
    pub async fn close(mut self, end: SocketEnd) {
        self.is_closed = true;
        let _ = self.shard.send(Command::Input(self.closed(end))).await;
    }

    /// Sends to the shard; while its inbox is full that takes a while. Boxed, since it is rare and every socket's task
    /// would have to be larger for it. A shard that is gone takes its sockets with it.
    fn send(&self, command: Command) -> Option<BoxFuture<'_, ()>> {
        match self.shard.try_send(command) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => None,
            Err(mpsc::error::TrySendError::Full(command)) => Some(self.shard.send(command).map(drop).boxed()),
        }
    }

    fn closed(&self, end: SocketEnd) -> Input {
        Input::SocketClosed { session: self.attachment.session, end }
    }
}

impl Drop for AttachedSocket {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let command = Command::Input(self.closed(SocketEnd::Lost));
        match self.shard.try_send(command) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(command)) => {
                let shard = self.shard.clone();
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { shard.send(command).await });
                }
            }
        }
    }
}
