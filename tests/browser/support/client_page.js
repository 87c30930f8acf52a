/**
 * A page of the gateway's origin that has the protobuf client's module and nothing else to do.
 */
import { bundle } from "./bundle.js";

let code;

/** Opens the page at `origin`. In it, `openClient(name, options)` makes a client of the demo's hub. */
export async function openClientPage(browser, origin) {
  code ??= await bundle("protobuf-client/index.ts");
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
