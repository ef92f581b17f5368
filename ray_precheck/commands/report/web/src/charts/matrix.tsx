// A matrix of numbers as colored cells on a canvas, with a cursor, a legend and a tip: heat maps and blocks.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { shown } from "../format";
import { FactTable, openRow, RowLink } from "../parts";
import type { Num } from "../types";
import { fitting, FONT, hatching, palette, prepared, textWidth, Tip, useScheme, useWidth } from "./canvas";
import type { HeatScale, Scheme } from "./scale";
import { css, cut, everyNth, heatColor, heatScale, INFINITE, inkOn } from "./scale";

export interface MatrixFacts {
  title: string;
  /** what stands behind the title, in quiet letters */
  caption: string;
  unit: string;
  values: Num[][];
  above: Num;
  rows: string[];
  columns: string[];
  headings: [string, string];
  /** where a cell is, in words */
  where(row: number, column: number): string;
  link(row: number, column: number): string;
  /** the largest cell, and the largest height of the whole, in CSS pixels */
  most: { cellWidth: number; cellHeight: number; height: number };
}

export interface MatrixLayout {
  left: number; top: number; cellWidth: number; cellHeight: number; width: number; height: number;
  isSlanted: boolean;
}

// Less than a pixel and a half is no longer seen; then the picture scrolls.
const LEAST_CELL = 1.5;
const LONGEST_LABEL = 44;

/** How large cells are, and what room their labels have, which are `rowLabel` and `columnLabel` wide. */
export function matrixLayout(
  wide: number, rows: number, columns: number, rowLabel: number, columnLabel: number, most: MatrixFacts["most"],
): MatrixLayout {
  const left = Math.ceil(Math.min(rowLabel, wide * 0.4)) + 8;
  const flat = (wide - left - 8) / columns;
  const isSlanted = Math.min(flat, most.cellWidth) < columnLabel + 6;
  // Labels at an angle of 45 degrees rise as far as they go to the right.
  const rise = Math.min(columnLabel, 190) * Math.SQRT1_2;
  const right = isSlanted ? Math.ceil(Math.min(rise, wide * 0.2)) + 8 : 8;
  const cellWidth = Math.max(LEAST_CELL, Math.min(most.cellWidth, (wide - left - right) / columns));
  const cellHeight = Math.max(LEAST_CELL, Math.min(most.cellHeight, most.height / rows));
  const top = isSlanted ? Math.ceil(rise) + 14 : 22;
  return {
    left, top, cellWidth, cellHeight, isSlanted,
    width: Math.ceil(left + cellWidth * columns + right), height: Math.ceil(top + cellHeight * rows) + 2,
  };
}

/** The cell with the largest value, or the first; and how many cells are beyond the limit, and how many are. */
export function worstCell(values: Num[][], above: Num) {
  let [row, column, most, over, count] = [0, 0, -Infinity, 0, 0];
  values.forEach((line, r) => line.forEach((value, c) => {
    if (value === null) return;
    count++;
    if (above !== null && value > above) over++;
    if (value > most) [row, column, most] = [r, c, value];
  }));
  return { row, column, value: count ? most : null, over, count };
}

export const measured = (value: Num, unit: string): string =>
  value === null ? "nothing here" : `${value >= INFINITE ? "infinite" : shown(value)} ${unit}`.trim();

export function Matrix({ facts }: { facts: MatrixFacts }) {
  const frame = useRef<HTMLDivElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const wide = useWidth(frame);
  const scheme = useScheme();
  const [chosen, setCell] = useState<[number, number] | null>(null);
  const worst = useMemo(() => worstCell(facts.values, facts.above), [facts]);
  const scale = useMemo(() => heatScale(facts.values.flat(), facts.above), [facts]);
  const [rowCount, columnCount] = [facts.values.length, facts.values[0]?.length ?? 0];
  const layout = useMemo(() => {
    const widest = (labels: string[]) => Math.max(0, ...labels.map((label) => textWidth(cut(label, LONGEST_LABEL))));
    return matrixLayout(
      wide, rowCount, columnCount, widest(facts.rows), widest(facts.columns), facts.most);
  }, [facts, wide]);
  useLayoutEffect(() => {
    if (wide > 0 && rowCount && columnCount) drawMatrix(canvas.current!, facts, layout, scale, scheme);
  }, [facts, layout, scale, scheme]);
  const cell = chosen && chosen[0] < rowCount && chosen[1] < columnCount ? chosen : null;

  const cellAt = (event: PointerEvent | MouseEvent): [number, number] | null => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - layout.left) / layout.cellWidth);
    const row = Math.floor((event.clientY - box.top - layout.top) / layout.cellHeight);
    return row >= 0 && column >= 0 && row < rowCount && column < columnCount ? [row, column] : null;
  };
  const moved = (event: PointerEvent) => {
    const next = cellAt(event);
    if (next?.join() !== cell?.join()) setCell(next);
  };
  const pressed = (event: KeyboardEvent) => {
    const [row, column] = cell ?? [worst.row, worst.column];
    const step = MOVES[event.key];
    if (event.key === "Enter") openRow(facts.link(row, column));
    else if (event.key === "Escape") setCell(null);
    else if (step) {
      const [down, right] = event.ctrlKey ? [step[0] * 1e9, step[1] * 1e9] : step;
      const inside = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
      setCell([inside(row + down, rowCount), inside(column + right, columnCount)]);
    } else return;
    event.preventDefault();
  };
  if (!rowCount || !columnCount) return <p>{facts.title}: there is nothing to show.</p>;
  const link = cell ? facts.link(...cell) : "";
  const said = facts.above === null ? `${worst.count.toLocaleString("en-US")} cells`
    : `${worst.over.toLocaleString("en-US")} of ${worst.count.toLocaleString("en-US")} cells are beyond the limit`;
  const label = worst.count
    ? `${facts.title}: ${said}; the largest is ${measured(worst.value, facts.unit)}, ${facts.where(worst.row, worst.column)}`
    : `${facts.title}: no cell has a value`;
  const spot = cell && {
    x: layout.left + (cell[1] + 1) * layout.cellWidth - (scroller.current?.scrollLeft ?? 0),
    y: layout.top + (cell[0] + 1) * layout.cellHeight, width: wide,
  };
  return (
    <figure class="matrix">
      <figcaption><b>{facts.title}</b> <span>{facts.caption}</span></figcaption>
      <Legend scale={scale} unit={facts.unit} scheme={scheme} hasGaps={worst.count < rowCount * columnCount} />
      <div class="frame" ref={frame}>
        <div class="wide" ref={scroller}>
          <canvas
            ref={canvas} role="img" aria-label={label} tabIndex={0} class={link ? "opens" : ""}
            onPointerMove={moved} onPointerLeave={() => setCell(null)} onKeyDown={pressed}
            onFocus={() => { if (canvas.current!.matches(":focus-visible")) setCell(cell ?? [worst.row, worst.column]); }}
            onBlur={() => setCell(null)}
            onClick={(event) => { const at = cellAt(event); if (at) openRow(facts.link(...at)); }}
          />
          {cell && (
            <div class="cursor" style={{
              left: `${layout.left + cell[1] * layout.cellWidth - 2}px`,
              top: `${layout.top + cell[0] * layout.cellHeight - 2}px`,
              width: `${layout.cellWidth + 4}px`, height: `${layout.cellHeight + 4}px`,
            }} />
          )}
        </div>
        <Tip spot={spot}>
          {cell && <><b>{measured(facts.values[cell[0]]![cell[1]]!, facts.unit)}</b><br />{facts.where(...cell)}
            {link && <><br /><span class="what">click or Enter: opens {link}</span></>}</>}
        </Tip>
      </div>
      <FactTable title={facts.title} headings={[...facts.headings, facts.unit]} total={worst.count}
        rows={() => worstRows(facts)} />
    </figure>
  );
}

const MOVES: Record<string, [number, number]> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9],
  PageUp: [-10, 0], PageDown: [10, 0],
};

/** The cells with a value, the largest first. */
function worstRows(facts: MatrixFacts) {
  const cells: [number, number, number][] = [];
  facts.values.forEach((line, row) => line.forEach((value, column) => {
    if (value !== null) cells.push([value, row, column]);
  }));
  return cells.sort((one, other) => other[0] - one[0]).slice(0, 200).map(([value, row, column]) => [
    facts.rows[row], facts.columns[column],
    <RowLink row={facts.link(row, column)}>{measured(value, "")}</RowLink>,
  ]);
}

function drawMatrix(
  canvas: HTMLCanvasElement, facts: MatrixFacts, layout: MatrixLayout, scale: HeatScale, scheme: Scheme,
) {
  const { left, top, cellWidth, cellHeight } = layout;
  const [rows, columns] = [facts.values.length, facts.values[0]!.length];
  const colors = palette(scheme);
  const context = prepared(canvas, layout.width, layout.height);
  // One pixel a cell, made larger at once: a quarter of a million rectangles would take a second.
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const pixels = new ImageData(columns, rows);
  const hasLimit = scale.above !== null;
  facts.values.forEach((line, row) => line.forEach((value, column) => {
    if (value !== null) pixels.data.set([...heatColor(scale.place(value), hasLimit, scheme), 255], 4 * (row * columns + column));
  }));
  small.getContext("2d")!.putImageData(pixels, 0, 0);
  context.fillStyle = hatching(context, colors);
  context.fillRect(left, top, cellWidth * columns, cellHeight * rows);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, top, cellWidth * columns, cellHeight * rows);
  context.fillStyle = colors.ground;
  if (cellWidth > 6) for (let i = 1; i < columns; i++) context.fillRect(left + i * cellWidth - 0.5, top, 1, cellHeight * rows);
  if (cellHeight > 6) for (let i = 1; i < rows; i++) context.fillRect(left, top + i * cellHeight - 0.5, cellWidth * columns, 1);
  if (cellWidth >= 16 && cellHeight >= 15) drawNumbers(context, facts, layout, scale, scheme);
  context.font = FONT;
  context.fillStyle = colors.ink;
  context.textAlign = "right";
  const everyRow = everyNth(cellHeight, 14);
  for (let row = 0; row < rows; row += everyRow) {
    context.fillText(fitting(facts.rows[row]!, left - 6, LONGEST_LABEL), left - 6, top + (row + 0.5) * cellHeight);
  }
  context.textAlign = layout.isSlanted ? "left" : "center";
  const everyColumn = everyNth(cellWidth, layout.isSlanted ? 18 : 0);
  for (let column = 0; column < columns; column += everyColumn) {
    context.save();
    context.translate(left + (column + 0.5) * cellWidth, top - (layout.isSlanted ? 5 : 10));
    if (layout.isSlanted) context.rotate(-Math.PI / 4);
    context.fillText(fitting(facts.columns[column]!, layout.isSlanted ? 190 : cellWidth, LONGEST_LABEL), 0, 0);
    context.restore();
  }
}

/** Numbers where there is room for them; what is infinite is told in any case. */
function drawNumbers(
  context: CanvasRenderingContext2D, facts: MatrixFacts, layout: MatrixLayout, scale: HeatScale, scheme: Scheme,
) {
  context.textAlign = "center";
  facts.values.forEach((line, row) => line.forEach((value, column) => {
    const isInfinite = value !== null && value >= INFINITE;
    if (value === null || (layout.cellWidth < 50 && !isInfinite)) return;
    context.fillStyle = inkOn(heatColor(scale.place(value), scale.above !== null, scheme));
    const [x, y] = [layout.left + (column + 0.5) * layout.cellWidth, layout.top + (row + 0.5) * layout.cellHeight];
    context.fillText(isInfinite ? "∞" : shown(value), x, y);
  }));
}

/** What the colors mean, in numbers. */
function Legend({ scale, unit, scheme, hasGaps }: {
  scale: HeatScale; unit: string; scheme: Scheme; hasGaps: boolean;
}) {
  const hasLimit = scale.above !== null;
  const isSigned = hasLimit && scale.above! > 0;
  const steps = 24;
  const places = Array.from({ length: steps }, (_, index) =>
    isSigned ? (2 * index + 1) / steps - 1 : (index + 0.5) / steps);
  const [from, cell] = [10, 10];
  const end = from + steps * cell;
  return (
    <div class="legend-line" aria-hidden="true">
      <svg class="legend" width={end + 10} height="34" viewBox={`0 0 ${end + 10} 34`}>
        {places.map((place, index) => (
          <rect x={from + index * cell} y="2" width={cell} height="12" fill={css(heatColor(place, hasLimit, scheme))} />
        ))}
        {isSigned && <line x1={from + end / 2 - 5} x2={from + end / 2 - 5} y1="0" y2="18" class="rule" />}
        <text x={from} y="28">{isSigned || !hasLimit ? shown(scale.low || scale.middle) : "> 0"}</text>
        {isSigned && <text x={from + end / 2 - 5} y="28" text-anchor="middle">limit {shown(scale.above)}</text>}
        <text x={end} y="28" text-anchor="end">{shown(scale.high)}</text>
      </svg>
      <span>{unit}</span>
      {hasGaps && (
        <span>
          <svg width="26" height="14" viewBox="0 0 26 14"><path d="M1 9L8 2M5 12L14 3M11 12L17 6" class="hatch" /></svg>
          nothing here
        </span>
      )}
    </div>
  );
}
