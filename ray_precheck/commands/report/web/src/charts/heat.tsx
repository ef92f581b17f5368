import type { HeatMap } from "../types";

export function HeatMapPicture({ chart }: { chart: HeatMap }) {
  return <p>{chart.title}</p>;
}
