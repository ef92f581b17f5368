// A page that follows a run: it asks the server that gave it whether there is something new.
import type { Report } from "./types";

/** Ask every `everyS` seconds; `show` gets a new report. Ends with the run. Returns how to stop. */
export function followed(everyS: number, show: (report: Report) => void): () => void {
  let tag = "";
  const timer = setInterval(async () => {
    try {
      const answer = await fetch(`data?since=${encodeURIComponent(tag)}`);
      if (answer.status === 204) return;
      if (!answer.ok) throw new Error(String(answer.status));
      tag = answer.headers.get("etag") ?? "";
      const next = (await answer.json()) as { report: Report; blobs: string[] };
      document.querySelectorAll("script[id^='b'][type='text/plain']").forEach((element) => element.remove());
      next.blobs.forEach((text, index) => {
        const element = document.createElement("script");
        element.type = "text/plain";
        element.id = `b${index}`;
        element.textContent = text;
        document.body.append(element);
      });
      show(next.report);
      // The server stays for a while after the run, but has nothing new to say.
      if (next.report.views.every((view) => view.state !== "running")) clearInterval(timer);
    } catch {
      clearInterval(timer);
      document.body.classList.add("ended");
    }
  }, everyS * 1000);
  return () => clearInterval(timer);
}
