// Imports a module of src/ as the page has it; called by the tests.
import { build } from "esbuild";

/** Return what a file of src/ exports. */
export async function bundled(file) {
  const made = await build({
    absWorkingDir: new URL("..", import.meta.url).pathname,
    entryPoints: [`src/${file}`],
    bundle: true,
    write: false,
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  return import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].contents).toString("base64")}`);
}
