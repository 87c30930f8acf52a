"""Judges the gateway's framing from outside, with the Autobahn suite of WebSocket cases.

Each case is a raw client that publishes to a group that it is in itself, and so gets its own messages back: an echo
server, as the suite wants one. There are two runs, each against a gateway of its own: with the limit on messages raised
all cases but those of compression, which is not offered; with the default limit also without those whose messages are
larger. All that differs from the expected results fails, better results too; they are in the files beside this one,
which `--update` writes anew.

The suite is code for CPython 2.7. Where there is none, nothing is judged, and this says so and succeeds.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE = HERE / ".suite"
REQUIREMENTS = HERE / "requirements.txt"

ACCESS_KEY = "autobahn-tests-access-key-0123456789abcdef"
GROUP = "echo"

# How long a run may take before it is given up: a safety net, and no measurement.
PATIENCE_SECONDS = 900.0

COMPRESSION = ["12.*", "13.*"]
LARGER_THAN_1_MIB = ["9.1.4", "9.1.5", "9.1.6", "9.2.4", "9.2.5", "9.2.6", "9.3.*", "9.4.*"]

MIB = 1024 * 1024
RUNS = {
    # The largest message of the suite has 16 MiB, and the client's own copy of it waits in its outbox.
    "raised-limit": (f"websocket_message_bytes_max = {16 * MIB}\noutbox_bytes_max = {64 * MIB}\n", COMPRESSION),
    "default-limit": ("", COMPRESSION + LARGER_THAN_1_MIB),
}


def interpreter() -> str | None:
    """CPython 2.7 with pip: the one that PYTHON27 names, the one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [os.environ.get("PYTHON27"), shutil.which("python2.7")]
    candidates += [str(path) for path in sorted(pyenv.glob("versions/2.7*/bin/python2.7"))]
    check = "import sys, pip, zlib; sys.exit(sys.version_info[:2] != (2, 7) or not hasattr(sys, 'subversion'))"
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def install(python: str) -> None:
    """Installs the suite beside this file, unless it is there already."""
    stamp = SUITE / ".installed"
    if stamp.exists() and stamp.read_bytes() == REQUIREMENTS.read_bytes():
        return
    shutil.rmtree(SUITE, ignore_errors=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
    command += ["--no-deps", "--target", str(SUITE), "--requirement", str(REQUIREMENTS)]
    # Its warnings are about its own age.
    subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    shutil.copyfile(REQUIREMENTS, stamp)


class Gateway:
    """A gateway on a free port of loopback, with a configuration file of this text."""

    def __init__(self, folder: Path, toml: str):
        config = folder / "oncewire.toml"
        config.write_text(toml)
        binary = Path(os.environ.get("ONCEWIRE_BIN_DIR", HERE.parents[1] / "target/debug")) / "oncewire"
        self._environment = {
            **os.environ,
            "ONCEWIRE_ACCESS_KEY": ACCESS_KEY,
            "ONCEWIRE_PRINT_CONNECTION_STRING": "true",
        }
        self._binary = str(binary)
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [self._binary, "serve", "--listen", "127.0.0.1:0", "--store", "memory", "--config", str(config)],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        # The end of the output, should it fail to start.
        ready = self._process.stdout.readline()
        found = re.search(r"connection string: Endpoint=(\S+?)/?;", ready)
        if not found:
            self._process.kill()
            sys.exit(f"the gateway did not start: {self.log()}")
        self.endpoint = found[1]

    def url(self) -> str:
        """The URL of a client that echoes itself."""
        command = [self._binary, "token", "--hub", "chat", "--endpoint", self.endpoint]
        command += ["--role", f"webpubsub.sendToGroup.{GROUP}", "--group", GROUP]
        done = subprocess.run(command, env=self._environment, capture_output=True, check=True, text=True)
        return f"{done.stdout.strip()}&webpubsub_mode=sendToGroup&group={GROUP}"

    def log(self) -> str:
        """What it has logged so far."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        """Ends it gracefully; fails if it ended badly or had logged that something is broken."""
        self._process.terminate()
        try:
            code = self._process.wait(60)
        finally:
            self._process.kill()
        broken = re.findall(r".*(?:\bERROR\b|panicked at).*", self.log())
        if code != 0 or broken:
            sys.exit(f"the gateway ended with {code}: {broken}")


def measure(python: str, toml: str, exclude: list[str]) -> dict[str, dict]:
    """The results of all cases but the excluded ones, by case."""
    with tempfile.TemporaryDirectory(prefix="oncewire-autobahn-") as folder:
        gateway = Gateway(Path(folder), toml)
        try:
            arguments = json.dumps({"url": gateway.url(), "cases": ["*"], "exclude": exclude})
            with (Path(folder) / "suite").open("w+") as said:
                command = [python, str(HERE / "client.py"), str(SUITE), arguments]
                client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
                net = threading.Timer(PATIENCE_SECONDS, client.kill)
                net.start()
                results = [json.loads(line) for line in client.stdout]
                net.cancel()
                if client.wait() != 0:
                    said.seek(0)
                    last = "".join(said.readlines()[-10:])
                    sys.exit(f"the suite ended with {client.returncode} after {len(results)} cases\n{last}")
        finally:
            gateway.stop()
    return {result["id"]: result for result in results}


def summary(result: dict) -> str:
    """What is compared: how the case went, how the socket closed, and the gateway's close code."""
    return f"{result['behavior']} {result['behaviorClose']} {result['remoteCloseCode'] or '-'}"


def expectations(file: Path) -> dict[str, list[str]]:
    """The summaries that are expected of each case. There are two where an echo may still come before a close."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {case: summaries.split(" | ") for case, _, summaries in (line.partition(" ") for line in lines)}


def compare(file: Path, results: dict[str, dict]) -> list[str]:
    """All differences, one in a line."""
    expected = expectations(file)
    differences = []
    for case in [*results, *(expected.keys() - results.keys())]:
        result = results.get(case)
        got = summary(result) if result else "no result"
        wanted = expected.get(case, ["no result"])
        if got not in wanted:
            explanation = f" ({result['result']} {result['resultClose']})" if result else ""
            differences.append(f"{case}: {got}, expected {' or '.join(wanted)}{explanation}")
    return differences


def update(file: Path, results: dict[str, dict]) -> None:
    """Writes the results as what is expected; lines that allow them stay as they are, and so does the comment."""
    known = expectations(file)
    comment = [line for line in file.read_text().splitlines() if line.startswith("#")]
    lines = [
        f"{case} {' | '.join(known[case]) if summary(result) in known.get(case, []) else summary(result)}"
        for case, result in results.items()
    ]
    file.write_text("\n".join([*comment, *lines]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The Autobahn suite against the gateway")
    parser.add_argument("--update", action="store_true", help="take the results as the expected ones")
    arguments = parser.parse_args()
    python = interpreter()
    if python is None:
        print("autobahn: SKIPPED, since there is no CPython 2.7 with pip (PYTHON27 may name one)")
        return
    install(python)
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(measure, python, *settings) for name, settings in RUNS.items()}
    failed = False
    for name, future in running.items():
        file, results = HERE / f"{name}.txt", future.result()
        if arguments.update:
            update(file, results)
        differences = compare(file, results)
        failed |= bool(differences)
        print(f"autobahn: {name}: {len(results)} cases, {len(differences)} not as expected")
        for difference in differences:
            print(f"  {difference}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
