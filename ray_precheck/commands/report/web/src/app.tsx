// The page: which view is shown, its sections in the order in which an engineer asks, and links into it.
import { useEffect, useState } from "preact/hooks";
import { forgetBlobs } from "./blobs";
import { Cards, Facts } from "./cards";
import { Picture } from "./charts/chart";
import { followed } from "./follow";
import { Badge, Command } from "./parts";
import { Rows, tableWith } from "./table";
import type { Chart, Report, RowTable, View } from "./types";

/** The row that the address names: `report.html#Mint.matmul.0`; "" for none and for a section. */
function wantedRow(): string {
  try {
    const hash = decodeURIComponent(location.hash.slice(1));
    return hash.startsWith("/") ? "" : hash;
  } catch {
    return "";
  }
}

export function App({ first }: { first: Report }) {
  const [report, setReport] = useState(first);
  const [at, setAt] = useState(0);
  const [wanted, setWanted] = useState(wantedRow());
  const [table, setTable] = useState(0);
  useEffect(() => {
    const changed = () => setWanted(wantedRow());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    if (!report.follow) return;
    return followed(report.follow.every_s, (next) => {
      forgetBlobs();
      setReport(next);
    });
  }, [report.follow?.every_s]);
  // A link opens the view and the table that has the row.
  useEffect(() => {
    let isOver = false;
    void (async () => {
      if (!wanted) return;
      for (const index of [at, ...report.views.keys()]) {
        const found = await tableWith(report.views[index]!.tables, wanted);
        if (found >= 0 && !isOver) {
          setAt(index);
          setTable(found);
          document.getElementById("rows")?.scrollIntoView();
          return;
        }
      }
    })();
    return () => { isOver = true; };
  }, [wanted, report]);
  const view = report.views[Math.min(at, report.views.length - 1)]!;
  useEffect(() => { document.title = `${view.command}: ${view.sentence}`; }, [view]);
  return (
    <>
      <Top report={report} at={at} choose={(index) => { setAt(index); setTable(0); }} />
      <main key={at}>
        <Head view={view} />
        <Cards cards={view.cards} more={view.more_cards} />
        <Charts id="overview" title="Overview" charts={view.overview} />
        <Charts id="model" title="The model" charts={view.model} />
        <Charts id="run" title="The run" charts={view.run} />
        <Tables tables={view.tables} wanted={wanted} at={table} choose={setTable} />
        <Rest view={view} />
      </main>
      <footer>
        <p>Made by ray_precheck {report.made.version}, {report.made.when}, of {report.made.of.join(" and ")}.</p>
        <details><summary>licences of what this page is made of</summary><Licences /></details>
      </footer>
    </>
  );
}

function Top({ report, at, choose }: { report: Report; at: number; choose: (index: number) => void }) {
  const sections = [
    ["head", "Verdict"], ["first", "Where to look first"], ["overview", "Overview"], ["model", "The model"],
    ["run", "The run"], ["rows", "All rows"], ["rest", "Not compared, files"],
  ] as const;
  const view = report.views[at] ?? report.views[0]!;
  const empty: Record<string, boolean> = {
    overview: !view.overview.length, model: !view.model.length, run: !view.run.length, rows: !view.tables.length,
  };
  const go = (event: Event, id: string) => {
    event.preventDefault();
    document.getElementById(id)?.scrollIntoView();
  };
  return (
    <header class="top">
      <nav aria-label="Sections">
        {sections.filter(([id]) => !empty[id]).map(([id, title]) => (
          <a href={`#/${id}`} onClick={(event) => go(event, id)}>{title}</a>
        ))}
      </nav>
      {report.views.length > 1 && (
        <nav aria-label="Commands" class="views">
          {report.views.map((each, index) => (
            <button type="button" aria-current={index === at ? "true" : undefined} onClick={() => choose(index)}>
              <Badge tone={each.tone}>{each.command}</Badge> {each.title}
            </button>
          ))}
        </nav>
      )}
    </header>
  );
}

function Head({ view }: { view: View }) {
  return (
    <section id="head" aria-labelledby="head-title">
      <h1 id="head-title"><Badge tone={view.tone}>{view.tone}</Badge> {view.sentence}</h1>
      <p class="what">{view.command}{view.title && `: ${view.title}`}
        {view.state !== "finished" && <b> ({view.state === "running" ? "still running" : "stopped before its end"})</b>}
      </p>
      <p class="counts">{view.counts.map((count) => (
        <Badge tone={count.number ? count.tone : "plain"}>{count.number.toLocaleString("en-US")} {count.name}</Badge>
      ))}</p>
      {view.notes.map((note) => <p class="note">{note}</p>)}
      {view.advice.length > 0 && (
        <>
          <h2>What to do next</h2>
          <ol>{view.advice.map((advice) => (
            <li>{advice.sentence}{advice.commands.map((line) => <Command line={line} />)}</li>
          ))}</ol>
        </>
      )}
      <details>
        <summary>device, versions, settings, and the command to repeat it</summary>
        <Facts title="" facts={view.facts} />
        {view.invocation && <><p>To repeat it:</p><Command line={view.invocation} /></>}
        {view.exit_code >= 0 && <p>Exit code {view.exit_code}.</p>}
      </details>
    </section>
  );
}

function Charts({ id, title, charts }: { id: string; title: string; charts: Chart[] }) {
  if (charts.length === 0) return null;
  return (
    <section id={id} aria-labelledby={`${id}-title`}>
      <h2 id={`${id}-title`}>{title}</h2>
      {charts.map((chart) => <Picture chart={chart} />)}
    </section>
  );
}

function Tables({ tables, wanted, at, choose }: {
  tables: RowTable[]; wanted: string; at: number; choose: (index: number) => void;
}) {
  const [isWanted, setWanted] = useState(wanted !== "");
  useEffect(() => { if (wanted) setWanted(true); }, [wanted]);
  if (tables.length === 0) return null;
  const table = tables[Math.min(at, tables.length - 1)]!;
  return (
    <section id="rows" aria-labelledby="rows-title">
      <h2 id="rows-title">All rows</h2>
      {tables.length > 1 && (
        <nav aria-label="Tables" class="views">
          {tables.map((each, index) => (
            <button type="button" aria-current={each === table ? "true" : undefined} onClick={() => choose(index)}>
              {each.label && `${each.label}: `}{each.title} ({each.rows.toLocaleString("en-US")})
            </button>
          ))}
        </nav>
      )}
      {isWanted || table.rows <= 20_000
        ? <Rows key={`${at}`} table={table} wanted={wanted} />
        : <button type="button" onClick={() => setWanted(true)}>
            show {table.rows.toLocaleString("en-US")} rows of {table.title}
          </button>}
      {table.note && <p class="note">{table.note}</p>}
    </section>
  );
}

function Rest({ view }: { view: View }) {
  return (
    <section id="rest" aria-labelledby="rest-title">
      <h2 id="rest-title">What was not compared</h2>
      {view.reasons.length === 0 && <p>Nothing is known to have been left out.</p>}
      <ul>{view.reasons.map((reason) => (
        <li><b>{reason.count.toLocaleString("en-US")}</b>: {reason.text}
          {reason.names.length > 0 && <span class="name"> (such as {reason.names.join(", ")})</span>}</li>
      ))}</ul>
      <h2>Files</h2>
      <ul>{view.files.map((file) => <li class="name">{file}</li>)}</ul>
    </section>
  );
}

function Licences() {
  const template = document.getElementById("licences") as HTMLTemplateElement | null;
  return <pre tabIndex={0}>{template?.content.textContent ?? ""}</pre>;
}
