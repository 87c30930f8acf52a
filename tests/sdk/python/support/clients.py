"""The synchronous and the asynchronous official client behind one asynchronous surface, with their events recorded.

The clients themselves are unmodified. Tests are asynchronous; calls of the synchronous client run in threads.
"""

import asyncio
import json
import threading
from typing import Any, Awaitable, Callable

from azure.messaging.webpubsubclient import WebPubSubClient as SyncSdk
from azure.messaging.webpubsubclient import WebPubSubClientCredential as SyncCredential
from azure.messaging.webpubsubclient.aio import WebPubSubClient as AsyncSdk
from azure.messaging.webpubsubclient.aio import WebPubSubClientCredential as AsyncCredential
from azure.messaging.webpubsubclient.models import CallbackType, SendMessageError, WebPubSubDataType
from azure.messaging.webpubsubservice import WebPubSubServiceClient

from .gateway import ACCESS_KEY
from .processes import PATIENCE_SECONDS

ALL_GROUPS = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"]

# No retries by the SDK: they would forget the caller's ack id.
NO_RETRIES = {"message_retry_total": 0}

# Names of errors that the SDK makes up itself when no ack came.
NOT_FROM_AN_ACK = ("", "NoAckMessageReceivedFromServer")


def client_url(endpoint: str, hub: str = "chat", key: str = ACCESS_KEY, **claims: Any) -> str:
    """A client URL from the official server SDK, for whoever listens at `endpoint`."""
    connection_string = f"Endpoint={endpoint};AccessKey={key};Version=1.0;"
    service = WebPubSubServiceClient.from_connection_string(connection_string, hub=hub)
    return service.get_client_access_token(**{"roles": ALL_GROUPS, **claims})["url"]


async def until(what: str, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits until `condition()` is truthy, and returns its value.

    A machine that stands still for a minute, and the processes under test with it, does not use up the patience.
    """
    loop = asyncio.get_running_loop()
    waited = 0.0
    while not (value := condition()):
        assert waited < seconds, f"timed out: {what}"
        before = loop.time()
        await asyncio.sleep(0.005)
        waited += min(loop.time() - before, 0.1)
    return value


class Client:
    """What tests see of either client. Lists grow in the order of the callbacks."""

    # The synchronous client runs each callback in a thread of its own, so their order means nothing.
    unordered_callbacks = False

    def __init__(self):
        self._lock = threading.Lock()
        self.connections: list[Any] = []
        self.disconnections = 0
        self.stopped = False
        self._messages: list[Any] = []
        self.rejoin_failures: list[Any] = []
        self.on_event: Callable[[str, Any], None] = lambda kind, event: None

    def _record(self, kind: str, event: Any) -> None:
        with self._lock:
            if kind == "connected":
                self.connections.append(event)
            elif kind == "disconnected":
                self.disconnections += 1
            elif kind == "stopped":
                self.stopped = True
            elif kind == "message":
                self._messages.append(event)
            elif kind == "rejoin_failed":
                self.rejoin_failures.append(event)
            self.on_event(kind, event)

    def _observe_acks(self, sdk: Any) -> None:
        """Reports ack frames as the SDK reads them: its calls do not tell a duplicate from a first success."""
        parse = sdk._protocol.parse_messages

        def parse_and_report(raw_message: str) -> Any:
            message = parse(raw_message)
            if message is not None and message.kind == "ack":
                self._record("ack", json.loads(raw_message))
            return message

        sdk._protocol.parse_messages = parse_and_report

    @property
    def connection_id(self) -> str:
        """The session's id; a test that expects one session fails here when there were more."""
        assert len(self.connections) == 1, "the session must not have been replaced"
        return self.connections[0].connection_id

    @property
    def messages(self) -> list[Any]:
        """What was delivered, in the order of arrival. Without sequence ids that order is not known everywhere."""
        with self._lock:
            messages = list(self._messages)
        if self.unordered_callbacks:
            messages.sort(key=lambda message: message.sequence_id or 0)
        return messages

    def texts(self, group: str) -> list[str]:
        """What was delivered of one group."""
        return [message.data for message in self.messages if message.group == group]

    def count(self) -> int:
        """How many messages were delivered."""
        return len(self._messages)

    async def received(self, group: str, count: int) -> list[str]:
        """Waits until `count` messages of a group were delivered and returns them."""
        await until(f"{count} messages of {group}", lambda: len(self.texts(group)) >= count)
        return self.texts(group)

    async def connected(self, count: int) -> str:
        """Waits for the `count`-th new session and returns its id."""
        await until(f"new session {count}", lambda: len(self.connections) >= count)
        return self.connections[count - 1].connection_id

    async def open(self) -> None:
        """Connects and waits for `connected`."""
        await self._open()
        await self.connected(1)

    async def send(self, group: str, text: str, **options: Any) -> None:
        """Sends a text."""
        await self.send_data(group, text, WebPubSubDataType.TEXT, **options)

    async def persist(self, request: Callable[[], Awaitable[None]]) -> list[str]:
        """Repeats a request, which names its ack id, until it is done. Returns the names of the errors that acks carried."""
        errors = []
        while True:
            try:
                await request()
                return errors
            # While there is no socket the SDK lets errors of its WebSocket library through.
            except Exception as error:  # pylint: disable=broad-except
                detail = error.error_detail if isinstance(error, SendMessageError) else None
                if detail is not None and detail.name not in NOT_FROM_AN_ACK:
                    errors.append(detail.name)
                    assert detail.name not in ("Forbidden", "PayloadMismatch"), detail.message
                assert not self.stopped, "the client gave up"
                await asyncio.sleep(0.01)

    async def send_until_done(self, group: str, text: str, ack_id: int) -> list[str]:
        """Sends a text under one ack id until it is done."""
        return await self.persist(lambda: self.send(group, text, ack_id=ack_id))


class AsyncClient(Client):
    """The asynchronous client."""

    def __init__(self, url: Callable[[], str], **options: Any):
        super().__init__()

        async def provide() -> str:
            return url()

        self.sdk = AsyncSdk(AsyncCredential(provide), **options)
        self._observe_acks(self.sdk)

    async def _open(self) -> None:
        def recorder(kind: str):
            async def record(event: Any = None) -> None:
                self._record(kind, event)

            return record

        for callback, kind in CALLBACKS.items():
            await self.sdk.subscribe(callback, recorder(kind))
        await self.sdk.open()

    async def close(self) -> None:
        """Ends the session."""
        await self.sdk.close()

    async def join(self, group: str, **options: Any) -> None:
        """Joins a group."""
        await self.sdk.join_group(group, **options)

    async def leave(self, group: str, **options: Any) -> None:
        """Leaves a group."""
        await self.sdk.leave_group(group, **options)

    async def send_data(self, group: str, data: Any, data_type: str, **options: Any) -> None:
        """Sends anything."""
        await self.sdk.send_to_group(group, data, data_type, **options)

    async def send_event(self, name: str, text: str) -> None:
        """Sends an event."""
        await self.sdk.send_event(name, text, WebPubSubDataType.TEXT)


class SyncClient(Client):
    """The synchronous client, its calls in threads.

    It begins to wait for an ack after having sent: an ack that comes in between is noticed only when `ack_timeout` is
    over, and the call then succeeds late. A short one keeps that from costing 30 s each time.
    """

    unordered_callbacks = True

    def __init__(self, url: Callable[[], str], **options: Any):
        super().__init__()
        self.sdk = SyncSdk(SyncCredential(url), **{"ack_timeout": 1.0, "start_timeout": 5.0, **options})
        self._observe_acks(self.sdk)

    async def _open(self) -> None:
        def recorder(kind: str):
            return lambda event=None: self._record(kind, event)

        for callback, kind in CALLBACKS.items():
            self.sdk.subscribe(callback, recorder(kind))
        await asyncio.to_thread(self.sdk.open)

    async def close(self) -> None:
        """Ends the session."""
        await asyncio.to_thread(self.sdk.close)

    async def join(self, group: str, **options: Any) -> None:
        """Joins a group."""
        await asyncio.to_thread(self.sdk.join_group, group, **options)

    async def leave(self, group: str, **options: Any) -> None:
        """Leaves a group."""
        await asyncio.to_thread(self.sdk.leave_group, group, **options)

    async def send_data(self, group: str, data: Any, data_type: str, **options: Any) -> None:
        """Sends anything."""
        await asyncio.to_thread(self.sdk.send_to_group, group, data, data_type, **options)

    async def send_event(self, name: str, text: str) -> None:
        """Sends an event."""
        await asyncio.to_thread(self.sdk.send_event, name, text, WebPubSubDataType.TEXT)


CALLBACKS = {
    CallbackType.CONNECTED: "connected",
    CallbackType.DISCONNECTED: "disconnected",
    CallbackType.STOPPED: "stopped",
    CallbackType.GROUP_MESSAGE: "message",
    CallbackType.REJOIN_GROUP_FAILED: "rejoin_failed",
}

CLIENTS = {"sync": SyncClient, "async": AsyncClient}
