/** How the rows of an analysis are grouped. A report holds the first grouping only; the server makes the others. */
import type { JSX } from "preact"
import { source } from "../../data/state"
import { choose } from "../../data/choice"
import { type Segment, Segments } from "../../components/segments"

export interface GroupingProps<T extends string> {
  readonly options: readonly Segment<T>[]
  readonly chosen: T
}

export function Grouping<T extends string>(props: GroupingProps<T>): JSX.Element {
  const live = source.value?.live ?? true
  const first = props.options[0]?.value
  const options = props.options.map((option) => live || option.value === first ? option : { ...option, disabled: true, title: "A report includes one grouping; foretrace serve shows the others" })
  return <Segments label="Group by" options={options} chosen={props.chosen} onChoose={(value) => choose({ by: value === first ? "" : value, sort: "" })} />
}
