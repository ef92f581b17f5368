import type { ModuleTree } from "../types";

export function ModuleTreePicture({ chart }: { chart: ModuleTree }) {
  return <p>{chart.title}</p>;
}
