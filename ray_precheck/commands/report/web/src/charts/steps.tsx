import type { StepChart } from "../types";

export function StepChartPicture({ chart }: { chart: StepChart }) {
  return <p>{chart.title}</p>;
}
