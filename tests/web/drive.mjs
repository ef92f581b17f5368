// Drives a browser for the tests beside it: `node drive.mjs chromium|firefox`. One command a line comes in as JSON,
// one answer a line goes out. What puppeteer sends the browser is WebDriver BiDi.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(new URL("../../ray_precheck/commands/report/web/package.json", import.meta.url));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [name, executable] = process.argv.slice(2);
const browser = await puppeteer.launch({
  browser: name === "firefox" ? "firefox" : "chrome",
  executablePath: executable,
  protocol: "webDriverBiDi",
  headless: true,
  // A test of a page of a million rows takes as long as the machine takes.
  protocolTimeout: 300_000,
  args: name === "firefox" ? [] : [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
let page;
let heard;

async function open({ path, hash = "", dark = false, width = 1280 }) {
  await page?.close();
  page = await browser.newPage();
  const seen = (heard = { errors: [], requests: [] });
  page.on("console", (message) => {
    if (["error", "warn", "warning"].includes(message.type())) seen.errors.push(message.text().slice(0, 500));
  });
  page.on("pageerror", (error) => seen.errors.push(String(error).slice(0, 500)));
  page.on("request", (request) => seen.requests.push(request.url().slice(0, 200)));
  await page.evaluateOnNewDocument(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
      window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  });
  await page.setViewport({ width, height: 900 });
  if (dark) await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
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
await browser.close();
