import type { TimelineChart } from "../types";

export function TimelineChartPicture({ chart }: { chart: TimelineChart }) {
  return <p>{chart.title}</p>;
}
