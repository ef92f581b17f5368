// The page: which view is shown, its sections in the order in which an engineer asks, and links into it.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { forgetBlobs } from "./blobs";
import { Cards, Facts } from "./cards";
import { Picture } from "./charts/chart";
import { followed } from "./follow";
import { visible } from "./format";
import { Badge, Command, goTo, keepInView } from "./parts";
import { PrintedTables, rowOfLink, Rows, type Linked, type Search } from "./table";
import type { Chart, Report, RowTable, View } from "./types";

/** What follows `#` in the address; "" where nobody can read it. */
function hashNow(): string {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

/** The row that the address names: `report.html#Mint.matmul.0`; "" for none and for a section. */
function wantedRow(): string {
  const hash = hashNow();
  return hash.startsWith("/") ? "" : hash;
}

/** Go to the section that the address names, with the keyboard: `report.html#/rows`. */
function openSection(): void {
  const section = document.getElementById(/^\/(\w+)$/.exec(hashNow())?.[1] ?? "");
  const heading = section?.matches("section") && document.getElementById(`${section.id}-title`);
  if (!section || !heading) return;
  const folded = section.querySelector<HTMLDetailsElement>(":scope > details.fold");
  if (folded) folded.open = true;
  heading.focus({ preventScroll: true });
  keepInView(section);
}

/** Where the row of a link is. */
interface Place extends Linked { view: number; table: number }

export function App({ first }: { first: Report }) {
  const [report, setReport] = useState(first);
  const [at, setAt] = useState(0);
  // An object of its own for each link, so that one that is followed again is followed.
  const [wanted, setWanted] = useState({ name: wantedRow() });
  const [linked, setLinked] = useState<Place | null>(null);
  const [missing, setMissing] = useState("");
  const [table, setTable] = useState(0);
  useEffect(() => {
    const changed = () => {
      setMissing("");
      setWanted({ name: wantedRow() });
      openSection();
    };
    addEventListener("hashchange", changed);
    openSection();
    const leave = openedInPrint();
    return () => {
      removeEventListener("hashchange", changed);
      leave();
    };
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
      if (!wanted.name) return;
      for (const view of [at, ...report.views.keys()]) {
        const found = await rowOfLink(report.views[view]!.tables, wanted.name);
        if (isOver) return;
        if (found) {
          setAt(view);
          setTable(found.table);
          setLinked({ ...found, view, name: wanted.name });
          return;
        }
      }
      setMissing(wanted.name);
    })();
    return () => { isOver = true; };
  }, [wanted]);
  const view = report.views[Math.min(at, report.views.length - 1)]!;
  useEffect(() => { document.title = `${view.command}: ${view.sentence}`; }, [view]);
  return (
    <>
      <Top report={report} at={at} choose={(index) => { setAt(index); setTable(0); }}>
        {missing && (
          <p class="note missing-row" role="alert">
            No row is named <span class="name">{visible(missing, 200)}</span>.{" "}
            <button type="button" onClick={() => setMissing("")}>close</button>
          </p>
        )}
      </Top>
      <main key={at}>
        <Head view={view} />
        <Cards cards={view.cards} more={view.more_cards} />
        <Charts id="overview" title="Overview" charts={view.overview} />
        <Charts id="model" title="The model" charts={view.model} />
        <Charts id="run" title="The run" charts={view.run} isFolded={isRunFolded(view)} />
        <Tables tables={view.tables} linked={linked?.view === at ? linked : null} at={table} choose={setTable} />
        <Rest view={view} />
      </main>
      <footer>
        <p>Made by ray_precheck {report.made.version}, {report.made.when}, of {report.made.of.join(" and ")}.</p>
        <details><summary>licences of what this page is made of</summary><Licences /></details>
      </footer>
    </>
  );
}

/** Open what is closed while the page is printed; not the tables beside pictures. Returns how to leave that. */
function openedInPrint(): () => void {
  let closed: HTMLDetailsElement[] = [];
  const before = () => {
    closed = [...document.querySelectorAll<HTMLDetailsElement>("main details:not(.facts, .filters, [open])")];
    closed.forEach((details) => { details.open = true; });
  };
  const after = () => closed.forEach((details) => { details.open = false; });
  // Captured, so that pictures which measure themselves before they are printed do it after this.
  addEventListener("beforeprint", before, true);
  addEventListener("afterprint", after);
  return () => {
    removeEventListener("beforeprint", before, true);
    removeEventListener("afterprint", after);
  };
}

/** How a run went is asked last, once it has ended; of a bisect there is nothing else. */
export function isRunFolded(view: View): boolean {
  return view.state === "finished" && view.overview.length + view.model.length > 0;
}

function Top({ report, at, choose, children }: {
  report: Report; at: number; choose: (index: number) => void; children: ComponentChildren;
}) {
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
    goTo(`/${id}`);
  };
  const place = useRef<HTMLElement>(null);
  // What is scrolled to stands below the header, which is as high as its lines.
  useLayoutEffect(() => {
    const measured = () => {
      document.documentElement.style.scrollPaddingTop = `${place.current!.offsetHeight + 8}px`;
    };
    measured();
    const observer = new ResizeObserver(measured);
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return (
    <header class="top" ref={place}>
      <a class="skip" href="#/head" onClick={(event) => go(event, "head")}>skip to the verdict</a>
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
      {children}
    </header>
  );
}

function Head({ view }: { view: View }) {
  return (
    <section id="head" aria-labelledby="head-title">
      <h1 id="head-title" tabIndex={-1}><Badge tone={view.tone}>{view.tone}</Badge> {view.sentence}</h1>
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

function Charts({ id, title, charts, isFolded = false }: {
  id: string; title: string; charts: Chart[]; isFolded?: boolean;
}) {
  // A run that ends while it is looked at stays open.
  const [wasFolded] = useState(isFolded);
  if (charts.length === 0) return null;
  const pictures = charts.map((chart) => <Picture chart={chart} />);
  return (
    <section id={id} aria-labelledby={`${id}-title`}>
      <h2 id={`${id}-title`} tabIndex={-1}>{title}</h2>
      {!wasFolded ? pictures : (
        <details class="fold"><summary>{charts.map((chart) => chart.title).join("; ")}</summary>{pictures}</details>
      )}
    </section>
  );
}

function Tables({ tables, linked, at, choose }: {
  tables: RowTable[]; linked: Place | null; at: number; choose: (index: number) => void;
}) {
  const [isWanted, setWanted] = useState(linked !== null);
  const [search, setSearch] = useState<Search>({ typed: "", isErrors: false });
  useEffect(() => { if (linked) setWanted(true); }, [linked]);
  if (tables.length === 0) return null;
  const index = Math.min(at, tables.length - 1);
  const table = tables[index]!;
  return (
    <section id="rows" aria-labelledby="rows-title">
      <h2 id="rows-title" tabIndex={-1}>All rows</h2>
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
        ? <Rows
            key={`${at}`} table={table} linked={linked?.table === index ? linked : null} search={search} setSearch={setSearch}
          />
        : <button type="button" onClick={() => setWanted(true)}>
            show {table.rows.toLocaleString("en-US")} rows of {table.title}
          </button>}
      {table.note && <p class="note">{table.note}</p>}
      <PrintedTables tables={tables} />
    </section>
  );
}

function Rest({ view }: { view: View }) {
  return (
    <section id="rest" aria-labelledby="rest-title">
      <h2 id="rest-title" tabIndex={-1}>What was not compared</h2>
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
