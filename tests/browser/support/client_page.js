/**
 * A page of the gateway's origin that has the protobuf client's module and nothing else to do.
 */
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { repositoryFile } from "../../sdk/js/support/processes.js";

const webDemo = repositoryFile("web-demo");
const vite = createRequire(path.join(webDemo, "package.json")).resolve("vite");

/** The module as browsers load it. */
async function bundle() {
  const { build } = await import(pathToFileURL(vite));
  const entry = path.join(webDemo, "src/protobuf-client/index.ts");
  const lib = { entry, formats: ["es"] };
  const [{ output }] = await build({ root: webDemo, configFile: false, logLevel: "error", build: { lib, write: false } });
  return output[0].code;
}

let code;

/** Opens the page at `origin`. In it, `openClient(name, options)` makes a client of the demo's hub. */
export async function openClientPage(browser, origin) {
  code ??= await bundle();
  const page = await browser.page();
  await page.route(`${origin}/client.js`, (route) => route.fulfill({ contentType: "text/javascript", body: code }));
  // A file of the gateway's own: Chromium would not let a made-up page reach loopback.
  await page.goto(`${origin}/licenses.txt`);
  await page.evaluate(prepare);
  return page;
}

/** Runs in the page. */
async function prepare() {
  const module = await import("/client.js");
  Object.assign(globalThis, module);
  globalThis.openClient = (name, options = {}) => {
    const getUrl = async () => {
      const headers = { "content-type": "application/json" };
      const response = await fetch("/demo/negotiate", { method: "POST", headers, body: JSON.stringify({ user: name }) });
      return (await response.json()).url;
    };
    return new module.ProtobufClient({ name, getUrl, onMessage: () => {}, ...options });
  };
  /** The name of the error with which a promise fails, if it does. */
  globalThis.failureOf = (promise) => promise.then(() => undefined, (error) => error.name);
  globalThis.text = (content) => ({ kind: "text", text: content });
}
