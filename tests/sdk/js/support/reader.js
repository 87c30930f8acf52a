/**
 * Somebody who reads the README and does what it says: the blocks of code cut out of the file, and a folder to paste them
 * into. Instead of installing, the commands of package managers take what the tests have installed; they fail for packages
 * that the tests don't know.
 */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { promisify } from "node:util";

import { binary, python, repositoryFile } from "./processes.js";
import { until, within } from "./waiting.js";

/** The port that the README speaks of. The tests take free ones in its place. */
const README_PORT = "7080";
const README_TLS_PORT = "8443";

/** The README's code, in its order: `{ language, text }`. */
export const blocks = [...(await readFile(repositoryFile("README.md"), "utf8")).matchAll(/^```(\w*)\n(.*?)^```$/gms)].map(
  ([, language, text]) => ({ language, text }),
);
const taken = new Set();

/** The text of the one block of this language that holds all these words. */
export function block(language, ...words) {
  const found = blocks.filter((one) => one.language === language && words.every((word) => one.text.includes(word)));
  assert.equal(found.length, 1, `there is one block of ${language} with ${words.join(", ")}`);
  taken.add(found[0]);
  return found[0].text;
}

/** Those that no test has asked for. */
export function leftOut() {
  return blocks.filter((one) => !taken.has(one)).map(({ text }) => text);
}

/** A port that is free now. */
export async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.on("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class Reader {
  /** In an empty folder, which is gone after test `t`. */
  static async start(t) {
    const reader = new Reader();
    reader.test = t;
    reader.home = await mkdtemp(path.join(os.tmpdir(), "oncewire-readme-"));
    reader.folder = path.join(reader.home, "empty");
    reader.commands = path.join(reader.home, "commands");
    await mkdir(reader.folder);
    await mkdir(reader.commands);
    [reader.port, reader.tlsPort] = [await freePort(), await freePort()];
    t.after(() => rm(reader.home, { recursive: true, force: true, maxRetries: 10 }));
    for (const [name, script] of Object.entries(commands(reader))) await reader.command(name, script);
    return reader;
  }

  /** Makes a command of a shell script. */
  async command(name, script) {
    const file = path.join(this.commands, name);
    await writeFile(file, `#!/bin/sh\nset -eu\n${script}\n`);
    await chmod(file, 0o755);
  }

  /** The same for a command that this machine need not have. */
  async substitute(name, script) {
    const isThere = await promisify(execFile)("sh", ["-c", `command -v ${name}`]).catch(() => undefined);
    if (isThere === undefined) await this.command(name, script);
  }

  /** Pastes a block into a file. */
  async paste(name, text) {
    await writeFile(path.join(this.folder, name), text);
  }

  /** Runs a block of the README as {@link runPrinted} does, with ports and places that are free. */
  run(text, options) {
    const script = text
      .replaceAll(README_PORT, String(this.port))
      .replaceAll(README_TLS_PORT, String(this.tlsPort))
      .replaceAll("/backups", path.join(this.home, "backups"));
    return this.runPrinted(script, options);
  }

  /** Runs shell commands as they are; `lines` has what they print. They are killed after the test. */
  runPrinted(text, { env = {} } = {}) {
    const child = spawn("sh", ["-euc", text], {
      cwd: this.folder,
      detached: true,
      env: { ...process.env, PATH: `${this.commands}:${process.env.PATH}`, ...env },
    });
    const [lines, errors] = [[], []];
    readline.createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
    readline.createInterface({ input: child.stderr }).on("line", (line) => errors.push(line));
    child.stdin.on("error", () => {});
    const ended = new Promise((resolve) => child.on("close", (code) => resolve(code)));
    this.test.after(() => {
      try {
        process.kill(-child.pid, "SIGKILL");
      } catch {
        // All of its processes have ended.
      }
    });
    const printed = (pattern) =>
      until(`${pattern} in\n${text}`, () => {
        const line = lines.find((one) => pattern.test(one));
        if (line === undefined && child.exitCode !== null) assert.fail(`${pattern} in\n${lines.concat(errors).join("\n")}`);
        return line;
      });
    /** Waits until it has ended well. */
    const done = async () => {
      const code = await within(`the end of\n${text}`, ended);
      assert.equal(code, 0, `${text}\n${lines.concat(errors).join("\n")}`);
      return lines;
    };
    /** Asks all of its processes to end. */
    const stop = () => process.kill(-child.pid, "SIGTERM");
    return { child, lines, errors, printed, done, ended, stop };
  }
}

/** What the README's commands are here. */
function commands(reader) {
  const nodeModules = repositoryFile("tests/sdk/js/node_modules");
  const gateway = binary("oncewire");
  return {
    // `dev` and `token` have a default, which is taken by whoever else runs tests.
    oncewire: `case "$1" in
dev) export ONCEWIRE_LISTEN=127.0.0.1:${reader.port} ONCEWIRE_TLS_LISTEN=127.0.0.1:${reader.tlsPort} ;;
token) export ONCEWIRE_PUBLIC_URL=http://127.0.0.1:${reader.port} ;;
esac
exec "${gateway}" "$@"`,
    cargo: `[ "$*" = "install --locked --path ." ]`,
    npm: `case "$1" in
init) printf '{ "name": "empty", "version": "1.0.0", "main": "index.js" }\\n' > package.json ;;
install)
  shift
  for package in "$@"; do [ -d "${nodeModules}/$package" ]; done
  ln -s "${nodeModules}" node_modules ;;
*) exit 1 ;;
esac`,
    python3: `[ "$*" = "-m venv .venv" ]
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec "${python()}" "$@"\\n' > .venv/bin/python
cat > .venv/bin/pip <<'PIP'
#!/bin/sh
set -eu
[ "$1" = install ]
shift
for package in "$@"; do grep -qx "$package" "${repositoryFile("tests/sdk/python/requirements.in")}"; done
PIP
chmod +x .venv/bin/python .venv/bin/pip`,
  };
}
