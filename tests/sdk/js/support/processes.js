/**
 * Child processes: where the binaries are, reading their lines, ending them with the test process.
 */
import { spawn } from "node:child_process";
import path from "node:path";
import readline from "node:readline";
import { fileURLToPath } from "node:url";

const repository = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../..");

/** Where cargo put a binary of the workspace; `ONCEWIRE_BIN_DIR` names another folder. */
export function binary(name) {
  const target = process.env.CARGO_TARGET_DIR ?? path.join(repository, "target");
  return path.join(process.env.ONCEWIRE_BIN_DIR ?? path.join(target, "debug"), name);
}

const running = new Set();
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** The interpreter that has the official Python clients; `ONCEWIRE_PYTHON` names another one. */
export function python() {
  return process.env.ONCEWIRE_PYTHON ?? path.join(repository, "tests/sdk/python/.venv/bin/python");
}

/** A file of the repository. */
export function repositoryFile(name) {
  return path.join(repository, name);
}

/** Starts a binary. `onLine(stream, line)` gets each line of `"stdout"` and `"stderr"`. */
export function start(name, args, options) {
  return startCommand(binary(name), args, options);
}

/** The same for any command. */
export function startCommand(command, args, { env = {}, onLine }) {
  const child = spawn(command, args, { env: { ...process.env, ...env } });
  running.add(child);
  for (const stream of ["stdout", "stderr"]) {
    readline.createInterface({ input: child[stream] }).on("line", (line) => onLine(stream, line));
  }
  // Writing to a process that has just ended is no error of the test by itself.
  child.stdin.on("error", () => {});
  const ended = new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      running.delete(child);
      resolve({ code, signal });
    });
  });
  ended.catch(() => {});
  return { child, ended };
}
