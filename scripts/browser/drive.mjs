// Drives a browser: `node drive.mjs chromium|firefox PROGRAM`. One command a line comes in as JSON, one answer a line
// goes out. What puppeteer sends the browser is WebDriver BiDi.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(new URL("../../ray_precheck/commands/report/web/package.json", import.meta.url));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [name, executable] = process.argv.slice(2);
// For want of a background network, Chromium would ask for hosts at every start.
const QUIET = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--enable-precise-memory-info",
];
const browsers = [];

/** The browser; Firefox has another one for dark pages, since BiDi cannot ask it for them. */
async function browserFor(dark) {
  const place = name === "firefox" && dark ? 1 : 0;
  browsers[place] ??= await puppeteer.launch({
    browser: name === "firefox" ? "firefox" : "chrome",
    executablePath: executable,
    protocol: "webDriverBiDi",
    headless: true,
    // A page of a million rows takes as long as the machine takes.
    protocolTimeout: 300_000,
    args: name === "firefox" ? [] : QUIET,
    extraPrefsFirefox: { "layout.css.prefers-color-scheme.content-override": place === 1 ? 0 : 1 },
  });
  return browsers[place];
}

let page;
let heard;

async function open({ path, hash = "", dark = false, width = 1280 }) {
  await page?.close();
  page = await (await browserFor(dark)).newPage();
  const seen = (heard = { errors: [], requests: [] });
  page.on("console", (message) => {
    if (["error", "warn", "warning"].includes(message.type())) seen.errors.push(message.text().slice(0, 500));
  });
  page.on("pageerror", (error) => seen.errors.push(String(error).slice(0, 500)));
  // Firefox lists a font of its own, which is data, too.
  page.on("request", (request) => {
    if (!/^(data|blob):/.test(request.url())) seen.requests.push(request.url().slice(0, 200));
  });
  await page.evaluateOnNewDocument(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
      window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  });
  await page.setViewport({ width, height: 900 });
  if (name !== "firefox") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  const begin = performance.now();
  await page.goto(pathToFileURL(path).href + (hash ? `#${encodeURIComponent(hash)}` : ""), { waitUntil: "load" });
  await page.waitForSelector("h1");
  return { seconds: (performance.now() - begin) / 1000 };
}

const commands = {
  open,
  evaluate: async ({ code }) => page.evaluate(code),
  wait: async ({ code, timeout_s = 20 }) => {
    await page.waitForFunction(code, { timeout: timeout_s * 1000, polling: 20 });
  },
  click: async ({ selector }) => page.click(selector),
  focus: async ({ selector }) => page.focus(selector),
  type: async ({ text }) => page.keyboard.type(text),
  press: async ({ key }) => page.keyboard.press(key),
  heard: async () => ({ ...heard, violations: await page.evaluate("window.violations") }),
  axe: async () => {
    await page.evaluate(axe);
    return page.evaluate(`axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
      (each) => each.id + ": " + each.nodes.slice(0, 3).map((node) => node.target.join(" ") + " " +
        node.any.concat(node.all, node.none).map((check) => check.message).join("; ")).join(" | ")))`);
  },
  pdf: async ({ path }) => void (await page.pdf({ path, timeout: 120_000 })),
  picture: async ({ path, selector }) => {
    const part = selector ? await page.$(selector) : page;
    await part.screenshot({ path });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: command, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](rest)) ?? null };
  } catch (error) {
    answer = { error: String(error?.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
for (const browser of browsers) await browser?.close();
