import type { Chart } from "../types";
import { FlowGraphPicture } from "./graph";
import { HeatMapPicture } from "./heat";
import { HistogramPicture } from "./histogram";
import { LineChartPicture } from "./lines";
import { StepChartPicture } from "./steps";
import { TimelineChartPicture } from "./timeline";
import { ModuleTreePicture } from "./tree";

export function Picture({ chart }: { chart: Chart }) {
  switch (chart.kind) {
    case "HeatMap": return <HeatMapPicture chart={chart} />;
    case "ModuleTree": return <ModuleTreePicture chart={chart} />;
    case "FlowGraph": return <FlowGraphPicture chart={chart} />;
    case "TimelineChart": return <TimelineChartPicture chart={chart} />;
    case "LineChart": return <LineChartPicture chart={chart} />;
    case "StepChart": return <StepChartPicture chart={chart} />;
    case "Histogram": return <HistogramPicture chart={chart} />;
  }
}
