import { render } from "preact";
import { App } from "./app";
import type { Report } from "./types";

const report = JSON.parse(document.getElementById("report")?.textContent ?? "null") as Report | null;
const place = document.getElementById("app")!;
if (report === null) {
  place.textContent = "This is the page without data; `ray-precheck report` writes one with them.";
} else {
  place.textContent = "";
  render(<App first={report} />, place);
}
