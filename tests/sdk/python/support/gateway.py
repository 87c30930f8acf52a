"""A real gateway process, started and stopped by a test."""

import queue
import re
from pathlib import Path

from .processes import PATIENCE_SECONDS, Process

ACCESS_KEY = "sdk-tests-access-key-0123456789abcdef"


class Gateway:
    """Listens on a free port of loopback, which it keeps over restarts. `toml` is the text of its configuration file,
    `disk` keeps its log over restarts."""

    def __init__(
        self, folder: Path, toml: str = "", environment: dict[str, str] | None = None, disk: bool = False
    ):
        self._config = folder / "oncewire.toml"
        self._config.write_text(toml)
        self._environment = environment
        self._store = ["--data-dir", str(folder / "data")] if disk else ["--store", "memory"]
        self._process: Process | None = None
        self._lines: list[str] = []
        self.port = 0
        self.launch()

    def launch(self) -> None:
        """Starts the process and waits until it is ready."""
        ready: queue.Queue[str | None] = queue.Queue()
        listens: queue.Queue[int] = queue.Queue()

        def on_line(stream: str, line: str | None) -> None:
            if line is None:
                ready.put(None)
                return
            self._lines.append(line)
            listening = re.search(r" listening scheme=\S+ address=127\.0\.0\.1:(\d+)", line)
            if listening:
                listens.put(int(listening[1]))
            found = re.search(r"connection string: (Endpoint=\S+)", line)
            if stream == "stdout" and found:
                ready.put(found[1])

        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--access-key", ACCESS_KEY]
        arguments += ["--print-connection-string", "--config", str(self._config), *self._store]
        self._process = Process("oncewire", arguments, on_line, self._environment)
        self.connection_string = ready.get(timeout=PATIENCE_SECONDS)
        assert self.connection_string, "the gateway ended before it was ready\n" + "\n".join(self._lines)
        assert re.match(r"Endpoint=[^;]+;AccessKey=", self.connection_string)
        # A public URL is told in place of the address that is listened on.
        self.port = listens.get(timeout=PATIENCE_SECONDS)
        self.endpoint = f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """`host:port`, as a proxy wants it."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Ends the gateway gracefully; fails if it ended badly or had logged that something is broken."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        code = process.wait()
        log = "\n".join(self._lines)
        assert code == 0, f"the gateway ended with {code}\n{log}"
        broken = [line for line in self._lines if re.search(r"\bERROR\b|panicked at", line)]
        assert not broken, f"the gateway logged errors: {broken}"

    def kill(self) -> None:
        """Ends the gateway without any warning."""
        process, self._process = self._process, None
        process.kill()
        process.wait()
