import type { BlockMaxima } from "../types";

export function BlocksPicture({ blocks }: { blocks: BlockMaxima }) {
  return <p>{blocks.title}</p>;
}
