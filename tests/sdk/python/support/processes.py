"""Child processes: where the binaries are, reading their lines, ending them with the test process."""

import atexit
import os
import subprocess
import threading
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[4]

# How long anything may take before its test gives up: a safety net for noisy machines, and no measurement.
PATIENCE_SECONDS = 60.0


def binary(name: str) -> str:
    """Where cargo put a binary of the workspace; `ONCEWIRE_BIN_DIR` names another folder."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return str(Path(os.environ.get("ONCEWIRE_BIN_DIR", target / "debug")) / name)


class Process:
    """A child whose output lines go to `on_line(stream, line)`, each from a thread of its own."""

    def __init__(self, name: str, arguments: list[str], on_line, environment: dict[str, str] | None = None):
        self._child = subprocess.Popen(
            [binary(name), *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._child.kill)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, on_line), daemon=True) for stream in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: str, on_line) -> None:
        for line in getattr(self._child, stream):
            on_line(stream, line.rstrip("\n"))
        on_line(stream, None)

    def write_line(self, line: str) -> None:
        """Hands a line to the child's input."""
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def close_input(self) -> None:
        """Ends the child's input."""
        self._child.stdin.close()

    def terminate(self) -> None:
        """Asks the child to end, by SIGTERM."""
        self._child.terminate()

    def kill(self) -> None:
        """Ends the child without any warning."""
        self._child.kill()

    def wait(self) -> int:
        """The exit code, once all output has been read; a child that does not end is killed and fails the test."""
        try:
            code = self._child.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise
        finally:
            atexit.unregister(self._child.kill)
        for reader in self._readers:
            reader.join()
        return code
