// Where the calls of a flow are drawn: dagre lays those that are shown out in layers.
import { Graph, layout } from "@dagrejs/dagre";
import { linked, type Flow } from "./flow";

export const NODE_WIDTH = 214;
export const NODE_HEIGHT = 64;

export interface Placed { call: number; x: number; y: number }
export interface Line { from: number; to: number; points: { x: number; y: number }[] }
export interface Drawing { nodes: Placed[]; lines: Line[]; pairs: Line[]; width: number; height: number }

export function drawingOf(flow: Flow, shown: ReadonlySet<number>): Drawing {
  const graph = new Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 34, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  // In the order of the run, so that the same calls give the same picture.
  const calls = [...shown].sort((a, b) => a - b);
  for (const call of calls) graph.setNode(String(call), { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const call of calls) {
    for (const next of linked(flow.after, call)) {
      if (shown.has(next) && next !== call) graph.setEdge(String(call), String(next));
    }
  }
  layout(graph);
  const nodes = calls.map((call) => {
    const { x, y } = graph.node(String(call)) as Placed;
    return { call, x, y };
  });
  const lines = graph.edges().map(({ v, w }) => ({
    from: Number(v), to: Number(w), points: (graph.edge(v, w) as unknown as Line).points,
  }));
  const places = new Map(nodes.map((node) => [node.call, node]));
  const pairs = calls.flatMap((call) => [...linked(flow.partners, call)]
    .filter((other) => other > call && shown.has(other))
    .map((other) => ({ from: call, to: other, points: [places.get(call)!, places.get(other)!] })));
  const size = graph.graph() as { width?: number; height?: number };
  return { nodes, lines, pairs, width: size.width ?? 0, height: size.height ?? 0 };
}

/** The shown call that an arrow key leads to from `call`: along an edge up or down, else beside it; -1 for none. */
export function beside(flow: Flow, drawing: Drawing, call: number, key: string): number {
  const here = drawing.nodes.find((node) => node.call === call);
  if (!here) return -1;
  const nearest = (nodes: Placed[]) =>
    nodes.sort((a, b) => Math.abs(a.x - here.x) - Math.abs(b.x - here.x))[0]?.call ?? -1;
  const along = { ArrowUp: flow.before, ArrowDown: flow.after }[key];
  if (along) {
    const ends = new Set(linked(along, call));
    return nearest(drawing.nodes.filter((node) => ends.has(node.call) && node.call !== call));
  }
  const side = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (!side) return -1;
  return nearest(drawing.nodes.filter((node) =>
    Math.abs(node.y - here.y) < NODE_HEIGHT / 2 && Math.sign(node.x - here.x) === side));
}
