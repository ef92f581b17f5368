// The sources as a module of Node, for the tests: `await sources('export * from "./src/rows.ts"')`.
import { build } from "esbuild";

export async function sources(entry) {
  const made = await build({
    stdin: { contents: entry, resolveDir: new URL(".", import.meta.url).pathname, loader: "ts" },
    bundle: true, write: false, format: "esm", platform: "neutral", mainFields: ["module", "main"], logLevel: "warning",
    jsx: "automatic", jsxImportSource: "preact",
  });
  return import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].text).toString("base64")}`);
}
