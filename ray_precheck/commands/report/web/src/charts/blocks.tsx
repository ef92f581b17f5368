// Where in a tensor its errors are: the largest of each block.
import { useMemo } from "preact/hooks";
import type { BlockMaxima } from "../types";
import { Matrix } from "./matrix";

/** The first and the last index of block `block` of `blocks` that divide `extent` evenly. */
export function blockRange(block: number, blocks: number, extent: number): [number, number] {
  const edge = (place: number) => Math.floor((place * extent) / blocks);
  return [edge(block), Math.max(edge(block), edge(block + 1) - 1)];
}

/** A range in words: `row 5`, `rows 0-127`. */
export function rangeWords(noun: string, [first, last]: [number, number]): string {
  const [from, to] = [first, last].map((each) => each.toLocaleString("en-US"));
  return first === last ? `${noun} ${from}` : `${noun}s ${from}-${to}`;
}

export function BlocksPicture({ blocks }: { blocks: BlockMaxima }) {
  const facts = useMemo(() => {
    const { shape, values } = blocks;
    const [down, across] = [values.length, values[0]?.length ?? 0];
    const columns = shape.at(-1) ?? 1;
    const rows = shape.slice(0, -1).reduce((product, each) => product * each, 1);
    const rowRange = (row: number) => blockRange(row, down, rows);
    const columnRange = (column: number) => blockRange(column, across, columns);
    const flattened = shape.length > 2 ? ` (of dims 0-${shape.length - 2} flattened)` : "";
    const start = ([first]: [number, number]) => first.toLocaleString("en-US");
    return {
      title: blocks.title,
      caption: `blocks of [${shape.join(", ")}]; dim ${Math.max(0, shape.length - 1)} across`
        + `${shape.length > 2 ? `, dims 0-${shape.length - 2} flattened down` : shape.length === 2 ? ", dim 0 down" : ""}`,
      unit: blocks.unit, values, above: blocks.above,
      rows: values.map((_, row) => start(rowRange(row))),
      columns: (values[0] ?? []).map((_, column) => start(columnRange(column))),
      headings: ["first row", "first column"] as [string, string],
      where: (row: number, column: number) =>
        `${rangeWords("row", rowRange(row))}${flattened}, ${rangeWords("column", columnRange(column))}`,
      link: () => "",
      // Few blocks are drawn large enough for their numbers.
      most: {
        cellWidth: Math.min(64, Math.max(24, 384 / across)), cellHeight: Math.min(36, Math.max(20, 320 / down)),
        height: 360,
      },
    };
  }, [blocks]);
  return <Matrix facts={facts} />;
}
