/** Hooks between a view and its data. */
import { type Resource, resourceOf, run, runId } from "./state"
import type { Source } from "./source"
import type { Table } from "./types"

/** A resource of the run that is shown, in whichever state it is; reading it here redraws the view when it comes. */
export function useResource<T>(resource: string, get?: (from: Source, run: string) => Promise<T>): Resource<T> {
  const id = runId.value
  if (id === null || run.value?.state !== "ready") return { state: "loading" }
  return resourceOf<T>(id, resource, get ? (from) => get(from, id) : undefined).value
}

/** One analysis of the run that is shown. */
export function useTable(name: string): Resource<Table> {
  return useResource<Table>(`table/${name}`)
}
