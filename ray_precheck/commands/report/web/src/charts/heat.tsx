// A heat map: operator types x dtypes, ranks x steps.
import { useMemo } from "preact/hooks";
import type { HeatMap } from "../types";
import { Matrix } from "./matrix";
import { cut } from "./scale";

/** A label behind its title, unless it begins with it: `rank 0`. */
const titled = (title: string, label = ""): string => cut(label.startsWith(title) ? label : `${title} ${label}`, 200);

export function HeatMapPicture({ chart }: { chart: HeatMap }) {
  const facts = useMemo(() => {
    const links = new Map(chart.links.map(([row, column, name]) => [`${row} ${column}`, name]));
    const [rowTitle, columnTitle] = [chart.row_title || "row", chart.column_title || "column"];
    return {
      title: chart.title,
      caption: `${chart.unit}, by ${rowTitle} (down) and ${columnTitle} (across)`,
      unit: chart.unit, values: chart.values, above: chart.above, rows: chart.rows, columns: chart.columns,
      headings: [rowTitle, columnTitle] as [string, string],
      where: (row: number, column: number) =>
        `${titled(rowTitle, chart.rows[row])}, ${titled(columnTitle, chart.columns[column])}`,
      link: (row: number, column: number) => links.get(`${row} ${column}`) ?? "",
      most: { cellWidth: 96, cellHeight: 24, height: 620 },
    };
  }, [chart]);
  return <Matrix facts={facts} />;
}
