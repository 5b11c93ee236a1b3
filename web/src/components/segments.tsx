/** A few choices side by side, of which one is taken. */
import type { JSX } from "preact"
import "./segments.css"

export interface Segment<T extends string> {
  readonly value: T
  readonly label: string
  readonly title?: string
  readonly disabled?: boolean
}

export interface SegmentsProps<T extends string> {
  readonly label: string
  readonly options: readonly Segment<T>[]
  readonly chosen: T
  readonly onChoose: (value: T) => void
}

export function Segments<T extends string>(props: SegmentsProps<T>): JSX.Element {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      <span class="quiet" aria-hidden="true">{props.label}</span>
      <div>
        {props.options.map((option) => (
          <button type="button" key={option.value} aria-pressed={option.value === props.chosen} disabled={option.disabled} title={option.title}
            onClick={() => props.onChoose(option.value)}>
            {option.label}
          </button>
        ))}
      </div>
    </div>
  )
}
