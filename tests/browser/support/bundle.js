/**
 * Modules of the page as JavaScript, for tests of their own. The page has to have been built once.
 */
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { repositoryFile } from "../../sdk/js/support/processes.js";

const webDemo = repositoryFile("web-demo");
const vite = createRequire(path.join(webDemo, "package.json")).resolve("vite");

/** The text of a module with all that it imports. `name` is its file below the page's sources. */
export async function bundle(name) {
  const { build } = await import(pathToFileURL(vite));
  const lib = { entry: path.join(webDemo, "src", name), formats: ["es"] };
  const [{ output }] = await build({ root: webDemo, configFile: false, logLevel: "error", build: { lib, write: false } });
  return output[0].code;
}
