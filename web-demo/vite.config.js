import { defineConfig } from "vite";

// The built files are committed and embedded in the gateway, so the same sources have to give the same bytes.
export default defineConfig({
  // The page may be served under a path of its host.
  base: "./",
  build: {
    target: ["chrome125", "firefox128", "safari17.5"],
    assetsInlineLimit: 0,
    license: { fileName: "licenses.txt" },
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
