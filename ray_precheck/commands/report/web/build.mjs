// Makes ../page.html of src/: one file with the script, the style, their hashes in a content security policy,
// and the licences of what is bundled. `node build.mjs --check` fails where page.html is not what the sources
// make. The same sources and lock file give the same bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";

const page = new URL("../page.html", import.meta.url);
const bundled = ["preact", "regular-table", "uplot", "@dagrejs/dagre", "@dagrejs/graphlib"];

async function bundle(entry) {
  const made = await build({
    absWorkingDir: new URL(".", import.meta.url).pathname,
    entryPoints: [entry],
    bundle: true,
    write: false,
    minify: true,
    charset: "utf8",
    format: "iife",
    target: ["chrome119", "firefox121"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    loader: { ".html": "text" },
    logLevel: "warning",
  });
  // Nothing in a bundle may end its element; a string that holds the end of a script is split by a backslash.
  return made.outputFiles[0].text.replaceAll("</script", "<\\/script").replaceAll("</style", "<\\/style");
}

function licences() {
  return bundled
    .map((name) => {
      const folder = new URL(`node_modules/${name}/`, import.meta.url);
      const { version, license } = JSON.parse(readFileSync(new URL("package.json", folder), "utf8"));
      const text = ["LICENSE", "LICENSE.md", "LICENSE.txt"]
        .map((file) => {
          try {
            return readFileSync(new URL(file, folder), "utf8").trim();
          } catch {
            return "";
          }
        })
        .find((found) => found);
      if (!text) console.warn(`${name} ${version} has no file of its licence (${license})`);
      return `${name} ${version} (${license})\n\n${text ?? license}`;
    })
    .join("\n\n----\n\n");
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

const script = await bundle("src/main.tsx");
const style = await bundle("src/style.css");
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "img-src data: blob:",
  "connect-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="ray_precheck report">
<title>ray_precheck</title>
<style>${style}</style>
</head>
<body>
<div id="app"><p class="waiting">This page draws itself by a script that stands in it; without one, see report.json
or <code>ray-precheck report --format md</code>.</p></div>
<template id="licences"><pre>${escaped(licences())}</pre></template>
<!-- report -->
<script>${script}</script>
</body>
</html>
`;
if (process.argv.includes("--check")) {
  if (readFileSync(page, "utf8") !== html) {
    console.error("page.html is not what the sources make: node build.mjs");
    process.exit(1);
  }
} else {
  writeFileSync(page, html);
  console.log(`page.html: ${(html.length / 1024).toFixed(0)} KiB`);
}
