// The modules of a model as a tree that opens along the worst verdict.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { SIGNS } from "../format";
import { FactTable, openRow, RowLink } from "../parts";
import { cut } from "./scale";
import type { ModuleNode, ModuleTree, Tone } from "../types";

// From the worst on, as `running.views.worst_tone` has it.
const WORST: Tone[] = ["error", "unmatched", "warning", "skip", "pass", "plain"];
const ROW = 26;
// More rows than these are made only where they are seen; fewer are there to be printed.
const ALL_ROWS = 300;
const HIGH = 480;

/** The children of each node; those of roots stand at -1. */
export function childrenOf(nodes: ModuleNode[]): Map<number, number[]> {
  const children = new Map<number, number[]>();
  nodes.forEach(({ parent }, index) => {
    const siblings = children.get(parent);
    if (siblings) siblings.push(index);
    else children.set(parent, [index]);
  });
  return children;
}

/** The nodes from a root to the worst leaf; only the roots where nothing is beyond a limit. */
export function worstPath(nodes: ModuleNode[], children: Map<number, number[]>): number[] {
  const path: number[] = [];
  const worse = (one: number, other: number) => {
    const [a, b] = [nodes[one]!, nodes[other]!];
    return WORST.indexOf(a.tone) - WORST.indexOf(b.tone) || b.errors - a.errors || one - other;
  };
  for (let below = children.get(-1); below?.length; below = children.get(path.at(-1)!)) {
    const worst = below.reduce((best, each) => (worse(each, best) < 0 ? each : best));
    path.push(worst);
    if (!["error", "unmatched", "warning"].includes(nodes[worst]!.tone)) break;
  }
  return path;
}

export interface TreeRow { index: number; level: number; position: number; siblings: number }

/** The rows that are seen while these nodes are open, in their order. */
export function openRows(children: Map<number, number[]>, open: ReadonlySet<number>): TreeRow[] {
  const rows: TreeRow[] = [];
  const waiting: TreeRow[] = [];
  const add = (parent: number, level: number) => {
    const below = children.get(parent) ?? [];
    for (let i = below.length - 1; i >= 0; i--) {
      waiting.push({ index: below[i]!, level, position: i + 1, siblings: below.length });
    }
  };
  add(-1, 1);
  for (let row = waiting.pop(); row; row = waiting.pop()) {
    rows.push(row);
    if (open.has(row.index)) add(row.index, row.level + 1);
  }
  return rows;
}

/** The name of a module without that of its parent. */
export function ownName(nodes: ModuleNode[], index: number): string {
  const { name, parent } = nodes[index]!;
  const above = parent < 0 ? "" : `${nodes[parent]!.name}.`;
  return above.length > 1 && name.startsWith(above) ? name.slice(above.length) : name;
}

export function countWords(node: ModuleNode): string {
  const calls = `${node.calls.toLocaleString("en-US")} ${node.calls === 1 ? "call" : "calls"}`;
  return node.errors ? `${node.errors.toLocaleString("en-US")} of ${calls} in error` : calls;
}

export function ModuleTreePicture({ chart }: { chart: ModuleTree }) {
  const { nodes } = chart;
  const children = useMemo(() => childrenOf(nodes), [nodes]);
  const path = useMemo(() => worstPath(nodes, children), [nodes]);
  // By name, since a page that follows a run gets other nodes; null: as the tree opens by itself.
  const [chosen, setChosen] = useState<{ open: ReadonlySet<string>; at: string } | null>(null);
  const { open, at } = useMemo(() => {
    if (!chosen) return { open: new Set(path), at: path.at(-1) ?? 0 };
    const open = new Set(nodes.flatMap((node, index) => (chosen.open.has(node.name) ? [index] : [])));
    return { open, at: Math.max(0, nodes.findIndex((node) => node.name === chosen.at)) };
  }, [nodes, chosen]);
  const choose = (index: number, opened: ReadonlySet<number> = open) =>
    setChosen({ open: new Set([...opened].map((each) => nodes[each]!.name)), at: nodes[index]?.name ?? "" });
  const [top, setTop] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const id = useMemo(() => `tree${Math.random().toString(36).slice(2)}`, []);
  const rows = useMemo(() => openRows(children, open), [children, open]);
  const place = Math.max(0, rows.findIndex((row) => row.index === at));
  // Where a cursor moves the tree scrolls, never the page.
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    if (place * ROW < element.scrollTop) element.scrollTop = place * ROW;
    else if ((place + 1) * ROW > element.scrollTop + element.clientHeight) {
      element.scrollTop = (place + 1) * ROW - element.clientHeight;
    }
  }, [at, place]);
  const toggled = (index: number) => {
    const next = new Set(open);
    if (!next.delete(index)) next.add(index);
    choose(index, next);
  };
  const pressed = (event: KeyboardEvent) => {
    const row = rows[place]!;
    const below = children.get(row.index);
    const isOpen = open.has(row.index);
    const move = (to: number) => choose(rows[Math.min(rows.length - 1, Math.max(0, to))]!.index);
    switch (event.key) {
      case "ArrowDown": move(place + 1); break;
      case "ArrowUp": move(place - 1); break;
      case "PageDown": move(place + 15); break;
      case "PageUp": move(place - 15); break;
      case "Home": move(0); break;
      case "End": move(rows.length - 1); break;
      case "ArrowRight": if (below && !isOpen) toggled(row.index); else if (below) choose(below[0]!); break;
      case "ArrowLeft":
        if (below && isOpen) toggled(row.index);
        else if (nodes[row.index]!.parent >= 0) choose(nodes[row.index]!.parent);
        break;
      case " ": if (below) toggled(row.index); break;
      case "Enter": openRow(nodes[row.index]!.link); break;
      default: return;
    }
    event.preventDefault();
  };
  if (nodes.length === 0) return <p>{chart.title}: no module is known.</p>;
  const isLong = rows.length > ALL_ROWS;
  const first = isLong ? Math.max(0, Math.floor(top / ROW) - 10) : 0;
  const seen = isLong ? rows.slice(first, first + Math.ceil(HIGH / ROW) + 20) : rows;
  const roots = children.get(-1) ?? [];
  const total = (key: "calls" | "errors") => roots.reduce((sum, root) => sum + nodes[root]![key], 0);
  const said = `${nodes.length.toLocaleString("en-US")} modules, ${total("errors").toLocaleString("en-US")} of `
    + `${total("calls").toLocaleString("en-US")} calls in error`;
  return (
    <figure>
      <figcaption><b>{chart.title}</b> <span>{said}; opened along the worst</span></figcaption>
      <p class="tools">
        <button type="button"
          onClick={() => choose(at, new Set(nodes.flatMap((node, index) => node.errors ? [index] : [])))}>
          open all with errors
        </button>
        <button type="button" onClick={() => choose(roots[0] ?? 0, new Set())}>close all</button>
      </p>
      <div class={isLong ? "tree long" : "tree"} ref={box} role="tree" tabIndex={0} aria-label={`${chart.title}: ${said}`}
        aria-activedescendant={seen.some((row) => row.index === at) ? `${id}-${at}` : undefined} onKeyDown={pressed}
        onScroll={() => isLong && setTop(box.current!.scrollTop)}>
        <div role="presentation" style={{ height: `${first * ROW}px` }} />
        {seen.map((row) => (
          <Row key={row.index} row={row} nodes={nodes} id={`${id}-${row.index}`} isHere={row.index === at}
            isOpen={children.has(row.index) ? open.has(row.index) : undefined}
            choose={() => choose(row.index)} toggle={() => toggled(row.index)} />
        ))}
        <div role="presentation" style={{ height: `${(rows.length - first - seen.length) * ROW}px` }} />
      </div>
      <FactTable title={chart.title} headings={["module", "verdict", "calls", "in error"]} total={nodes.length}
        rows={() => [...nodes].sort((one, other) => other.errors - one.errors).slice(0, 200).map((node) => [
          <RowLink row={node.link}>{node.name}</RowLink>, node.tone, node.calls, node.errors])} />
    </figure>
  );
}

function Row({ row, nodes, id, isHere, isOpen, choose, toggle }: {
  row: TreeRow; nodes: ModuleNode[]; id: string; isHere: boolean; isOpen: boolean | undefined; choose: () => void;
  toggle: () => void;
}) {
  const node = nodes[row.index]!;
  return (
    <div role="treeitem" id={id} class={isHere ? "here" : ""} aria-level={row.level} aria-posinset={row.position}
      aria-setsize={row.siblings} aria-expanded={isOpen} aria-selected={isHere} onClick={choose}
      style={{ paddingLeft: `${(row.level - 1) * 1.2}rem` }}>
      <span class="toggle" aria-hidden="true"
        onClick={(event) => { event.stopPropagation(); toggle(); }}>{isOpen === undefined ? "" : isOpen ? "▾" : "▸"}</span>
      <span class={`sign ${node.tone}`} aria-hidden="true">{SIGNS[node.tone]}</span>
      <span class="unseen">{node.tone}: </span>
      <span class="name" onDblClick={toggle}>{cut(ownName(nodes, row.index), 120)}</span>
      <span class={node.errors ? "count error" : "count"}>{countWords(node)}</span>
      {node.link && (
        <a href={`#${encodeURIComponent(node.link)}`} tabIndex={-1}
          onClick={(event) => { event.preventDefault(); openRow(node.link); }}>worst call</a>
      )}
    </div>
  );
}
