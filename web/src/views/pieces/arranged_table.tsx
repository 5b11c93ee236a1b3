/** A table with these columns first and without those in which nothing was recorded; the same until its data changes. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { arranged, unrecorded } from "../../components/table/columns"
import { DataTable, type DataTableProps } from "../../components/table/table"

export function ArrangedTable(props: DataTableProps & { readonly first: readonly string[] }): JSX.Element {
  const { first, hide = [], ...rest } = props
  const table = useMemo(() => arranged(props.table, first), [props.table, first.join()])
  const absent = useMemo(() => unrecorded(props.table), [props.table])
  return <DataTable {...rest} table={table} hide={[...absent, ...hide]} />
}
