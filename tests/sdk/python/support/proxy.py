"""Proxies that break connections at exact bytes: the `oncewire-proxy` process and its line protocol."""

import itertools
import json
import threading
from concurrent.futures import Future

from .gateway import Gateway
from .processes import PATIENCE_SECONDS, Process

UP = "client_to_server"
DOWN = "server_to_client"

# The ways to end a connection of which the client hears, with or without the server.
CUTS = ["cut_rst", "cut_fin", "client_dies"]


class ProxyProcess:
    """The process; it ends all its proxies with it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._replies: dict[int, Future] = {}
        self._process = Process("oncewire-proxy", [], self._on_line)

    def _on_line(self, stream: str, line: str | None) -> None:
        if stream != "stdout":
            return
        if line is None:
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(RuntimeError("oncewire-proxy ended"))
            return
        reply = json.loads(line)
        self._replies.pop(reply["id"]).set_result(reply)

    def ask(self, do: str, **fields) -> dict:
        """Carries out a command; blocks until the reply."""
        reply: Future = Future()
        with self._lock:
            number = next(self._ids)
            self._replies[number] = reply
            self._process.write_line(json.dumps({"id": number, "do": do, **fields}))
        answer = reply.result(PATIENCE_SECONDS + 10)
        assert answer["ok"], f"{do} {fields}: {answer['error']}"
        return answer

    def open(self, gateway: Gateway) -> "Proxy":
        """Opens a proxy before a gateway."""
        answer = self.ask("open", upstream=gateway.address)
        return Proxy(self, answer["proxy"], answer["address"])

    def close(self) -> None:
        """Ends the process."""
        self._process.close_input()
        assert self._process.wait() == 0


class Proxy:
    """One proxy. `endpoint` is what a client dials instead of the gateway."""

    def __init__(self, process: ProxyProcess, number: int, address: str):
        self._process = process
        self._number = number
        self.endpoint = f"http://{address}"

    def ask(self, do: str, **fields) -> dict:
        """Carries out a command on this proxy."""
        return self._process.ask(do, proxy=self._number, **fields)

    def random(self, **random) -> None:
        """Draws faults for later connections."""
        self.ask("random", random=random)

    def strike(self, action: str) -> None:
        """Strikes all connections now."""
        self.ask("strike", action=action)

    def stall(self, direction: str) -> None:
        """Stops a direction."""
        self.ask("stall", direction=direction)

    def resume(self, direction: str) -> None:
        """Lets a direction flow again."""
        self.ask("resume", direction=direction)

    def refuse(self, count: int | None = None) -> None:
        """Refuses the next `count` connections, all when None, none when 0."""
        self.ask("refuse", count=count)

    def report(self) -> dict:
        """What was seen so far."""
        return self.ask("report")["report"]

    def wait(self, **reached) -> None:
        """Waits until all these counts are reached."""
        self.ask("wait", reached=reached, timeout_ms=int(PATIENCE_SECONDS * 1000))
