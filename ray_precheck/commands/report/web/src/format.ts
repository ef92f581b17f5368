// Numbers and words as people read them.
import type { Num, Tone } from "./types";

export function shown(value: Num | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (Math.abs(1 - size) < 0.1) return String(Number(value.toPrecision(8)));
  // `running/views.py` writes multiples in the same way.
  const digits = size >= 1000 ? 4 : 3;
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export function powerOfTen(power: number): string {
  return power >= -4 && power <= 9 ? Number(`1e${power}`).toLocaleString("en-US", { maximumSignificantDigits: 1 }) : `1e${power}`;
}

export function times(value: Num, unit: string): string {
  return value === null ? "beyond any limit" : `${shown(value)} ${unit}`;
}

export function seconds(value: number): string {
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${shown(value * 1e6)} µs`;
  if (value < 1) return `${shown(value * 1e3)} ms`;
  if (value < 120) return `${shown(value)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 120 ? `${minutes} min ${Math.round(value % 60)} s` : `${shown(value / 3600)} h`;
}

// Controls, and marks that turn the direction of a text: a name must read as what it is.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A name or cell with what cannot be seen in it written out; at most so many characters, its begin and end. */
export function visible(text: string, most = Infinity): string {
  const tail = Math.floor(most / 3);
  const cut = text.length <= most ? text : `${text.slice(0, most - tail - 1)}…${text.slice(-tail)}`;
  return cut.replace(UNSEEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export const SIGNS: Record<Tone, string> = {
  pass: "✓", warning: "!", error: "✗", skip: "–", unmatched: "≠", plain: "·",
};
