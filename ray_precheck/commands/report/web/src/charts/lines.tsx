import type { LineChart } from "../types";

export function LineChartPicture({ chart }: { chart: LineChart }) {
  return <p>{chart.title}</p>;
}
