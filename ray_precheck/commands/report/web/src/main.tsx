import { options, render } from "preact";
import { App } from "./app";
import type { Report } from "./types";

// What is printed must be drawn before the listeners of `beforeprint` return: Firefox runs no promise until it has printed.
addEventListener("beforeprint", () => { options.debounceRendering = (draw) => draw(); }, true);
addEventListener("afterprint", () => { delete options.debounceRendering; });

const report = JSON.parse(document.getElementById("report")?.textContent ?? "null") as Report | null;
const place = document.getElementById("app")!;
if (report === null) {
  place.textContent = "This is the page without data; `ray-precheck report` writes one with them.";
} else {
  place.textContent = "";
  render(<App first={report} />, place);
}
