/** A page over one resource: its data, or why there is none and what to record. */
import type { ComponentChildren, JSX } from "preact"
import { type Resource, overview, valueOf } from "../data/state"
import { Empty, Loaded, Loading } from "./parts"

export interface RecordedProps<T> {
  readonly view: string // as in Overview.missing
  readonly title: string
  readonly ask: () => Resource<T> // not asked where the overview knows that there is nothing
  readonly empty?: (value: T) => boolean // there is an answer, but nothing in it to draw
  readonly otherwise: string // said where the overview has no words for it
  readonly children: (value: T) => ComponentChildren
}

export function Recorded<T>(props: RecordedProps<T>): JSX.Element {
  const { title } = props
  const about = overview.value
  if (about.state === "loading") return <Loading what={`Loading ${title.toLowerCase()} …`} />
  const missing = valueOf(about)?.missing[props.view]
  if (missing !== undefined) return <Empty title={title} says={missing} />
  const resource = props.ask()
  if (resource.state === "ready" && props.empty?.(resource.value)) return <Empty title={title} says={props.otherwise} />
  return (
    <Loaded resource={resource} what={title.toLowerCase()}>
      {props.children}
    </Loaded>
  )
}
