import type { Histogram } from "../types";

export function HistogramPicture({ chart }: { chart: Histogram }) {
  return <p>{chart.title}</p>;
}
