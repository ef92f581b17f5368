// Arrays and lists of strings, read when they are wanted: base64 of gzip in elements of the page.
import type { Blob_ } from "./types";

const KINDS = {
  float64: Float64Array, float32: Float32Array, int32: Int32Array, uint32: Uint32Array, uint16: Uint16Array,
  uint8: Uint8Array,
};
export type Numbers = Float64Array | Float32Array | Int32Array | Uint32Array | Uint16Array | Uint8Array;

/** Strings as bytes: of a million names only those that are seen become strings. */
export class Strings {
  readonly length: number;
  private readonly decoder = new TextDecoder();

  /** `ends[i]` is where string i ends in `bytes`; one zero stands between two of them. */
  constructor(readonly bytes: Uint8Array, readonly ends: Uint32Array) {
    this.length = ends.length;
  }
  begin(index: number): number {
    return index === 0 ? 0 : this.ends[index - 1]! + 1;
  }
  at(index: number): string {
    return this.decoder.decode(this.bytes.subarray(this.begin(index), this.ends[index]));
  }
  all(): string[] {
    return Array.from({ length: this.length }, (_, index) => this.at(index));
  }
}

const read = new Map<number, Promise<Uint8Array>>();
const kept = new Map<number, Promise<Numbers | Strings>>();

/** Forget what was read, since the page got other data. */
export function forgetBlobs(): void {
  read.clear();
  kept.clear();
}

async function bytesOf(blob: Blob_): Promise<Uint8Array> {
  const element = document.getElementById(`b${blob.blob}`);
  const text = element?.textContent ?? "";
  const packed = unbase64(text);
  const stream = new Blob([packed as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function unbase64(text: string): Uint8Array {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function once<T>(known: Map<number, Promise<T>>, blob: Blob_, make: () => Promise<T>): Promise<T> {
  let found = known.get(blob.blob);
  if (!found) known.set(blob.blob, (found = make()));
  return found;
}

export function numbers(blob: Blob_): Promise<Numbers> {
  return once(kept, blob, async () => {
    const bytes = await once(read, blob, () => bytesOf(blob));
    if (blob.dtype === "strings") throw new Error("a list of strings is no array");
    return new KINDS[blob.dtype](bytes.buffer as ArrayBuffer, 0, blob.length);
  }) as Promise<Numbers>;
}

export function strings(blob: Blob_): Promise<Strings> {
  return once(kept, blob, async () => {
    const bytes = await once(read, blob, () => bytesOf(blob));
    const ends = new Uint32Array(blob.length);
    let count = 0;
    for (let i = bytes.indexOf(0); i >= 0 && count < blob.length; i = bytes.indexOf(0, i + 1)) ends[count++] = i;
    if (count < blob.length) ends[count] = bytes.length;
    return new Strings(bytes, ends);
  }) as Promise<Strings>;
}
