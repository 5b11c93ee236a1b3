/** The step now, and what it is predicted to be. */
import type { JSX } from "preact"
import type { Headline, Range } from "../../data/types"
import { formatSpeedup, timeScale } from "../../base/format"

export function HeadlineBlock(props: { readonly headline: Headline }): JSX.Element {
  const { caption, before_ms: before, after_ms: after, speedup, title, says } = props.headline
  return (
    <section class="headline" aria-label="Headline">
      <p class="caption">{caption}</p>
      {before !== null && <Hero before={before} after={after} speedup={speedup} />}
      <h1>{title}</h1>
      <p class="says">{says}</p>
    </section>
  )
}

/** The step now, and what it would be. */
export function Hero(props: { readonly before: number; readonly after: Range | null; readonly speedup: Range | null }): JSX.Element {
  const { before, after, speedup } = props
  const scale = timeScale(before)
  return (
    <p class="hero">
      <strong>{scale.text(before)}</strong>
      <span class="unit">{scale.unit}</span>
      {after !== null && (
        <>
          <span class="arrow" role="img" aria-label="to">
            →
          </span>
          <strong class="gain">{scale.text(after.point)}</strong>
          <span class="unit gain">{scale.unit}</span>
          <span class="ends gain">({scale.range({ low: after.low, high: after.high })})</span>
        </>
      )}
      {speedup !== null && (
        <strong class="times gain">
          {formatSpeedup({ low: speedup.point, high: speedup.point })}{" "}
          <span class="ends">({formatSpeedup({ low: speedup.low, high: speedup.high }).replace("×", "")})</span>
        </strong>
      )}
    </p>
  )
}
