"""Writes what a test asked for and saw as a history, and lets the independent checker judge it."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from .clients import Client
from .processes import binary


class History:
    """The history of all clients of one test, in the order of observation."""

    def __init__(self, folder: Path):
        self._file = folder / "history.jsonl"
        self._lock = threading.Lock()
        self._events: list[dict] = []

    def push(self, **event: Any) -> None:
        """Appends one line."""
        with self._lock:
            self._events.append(event)

    def quiesced(self, *clients: Client) -> None:
        """Everything that had to arrive at these sessions has arrived."""
        self.push(event="quiesced", connections=[client.connection_id for client in clients])

    def judge(self) -> dict:
        """Fails unless the checker finds nothing wrong; returns how often it judged what."""
        self._file.write_text("".join(json.dumps(event) + "\n" for event in self._events))
        arguments = [binary("oncewire-check"), "--json", str(self._file)]
        result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"the checker refused {self._file}: {result.stdout}{result.stderr}"
        return json.loads(result.stdout)["statistics"]


class Recorder:
    """Records one client that keeps one session; create it before the client is opened."""

    def __init__(self, history: History, client: Client, hub: str):
        self._history = history
        self._client = client
        self._hub = hub
        self._connection: str | None = None
        # Callbacks may come before the one that tells the id.
        self._early: list[tuple[str, Any]] = []
        client.on_event = self._on_event

    # The client calls this under its lock, one event at a time.
    def _on_event(self, kind: str, event: Any) -> None:
        if kind == "connected":
            self._connection = event.connection_id
            self._push(
                event="opened",
                hub=self._hub,
                reliable=True,
                unordered_callbacks=self._client.unordered_callbacks,
            )
            early, self._early = self._early, []
            for earlier in early:
                self._on_event(*earlier)
        elif self._connection is None:
            self._early.append((kind, event))
        elif kind == "message":
            sequence_id = event.sequence_id
            self._push(event="delivered", group=event.group, message=event.data, sequence_id=sequence_id)
        elif kind == "ack":
            error = {} if event["success"] else {"error": event["error"]["name"]}
            self._push(event="acked", ack_id=event["ackId"], success=event["success"], **error)

    def _push(self, **event: Any) -> None:
        self._history.push(connection=self._connection, **event)

    async def join(self, group: str, ack_id: int) -> None:
        """Joins until done."""

        async def request() -> None:
            self._push(event="join", group=group, ack_id=ack_id)
            await self._client.join(group, ack_id=ack_id)

        await self._client.persist(request)

    async def send(self, group: str, text: str, ack_id: int, lane: str | None = None) -> list[str]:
        """Sends until done. Returns the names of the errors that acks carried."""

        async def request() -> None:
            in_lane = {"lane": lane} if lane else {}
            self._push(event="publish", group=group, message=text, ack_id=ack_id, **in_lane)
            await self._client.send(group, text, ack_id=ack_id)

        return await self._client.persist(request)
