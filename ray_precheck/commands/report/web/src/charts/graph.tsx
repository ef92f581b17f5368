import type { FlowGraph } from "../types";

export function FlowGraphPicture({ chart }: { chart: FlowGraph }) {
  return <p>{chart.title}</p>;
}
