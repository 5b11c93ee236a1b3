/** Memory of one device over time: allocated, stacked by category, below what torch held from the device. */
import type { JSX } from "preact"
import { useMemo, useState } from "preact/hooks"
import { place, resourceOf, runId, source, valueOf } from "../../data/state"
import { choose } from "../../data/choice"
import type { Interval } from "../../base/router"
import type { SnapshotCurve, SnapshotDevice } from "../../data/types"
import { Curve } from "../../components/curve/curve"
import { type Series, pointAt } from "../../components/curve/stack"
import { roundedStretch, within, zoomed } from "../../components/curve/zoom"
import { LinkButton } from "../../components/parts"
import { CategoryParts, bytes, formatTick, momentOf, seriesOf, totalAt, untilOf } from "./category_parts"

interface CurvePartProps {
  readonly device: SnapshotDevice
  readonly resource: string
}

export function SnapshotCurvePart(props: CurvePartProps): JSX.Element {
  const { device } = props
  const whole = { from: device.curve.at_ns[0] ?? 0, to: untilOf(device.curve.at_ns) }
  const shown = parseZoom(place.value.rest["zoom"], whole)
  const zoom = (area: Interval): void => choose({ zoom: area.from <= whole.from && area.to >= whole.to ? "" : `${Math.round(area.from)}-${Math.round(area.to)}` }, { replace: true })
  const detail = useDetail(props, shown)
  const curve = detail ?? device.curve
  const series = useMemo(() => seriesOf(curve.series), [curve])
  const reserved = useMemo((): Series => ({ label: "reserved", colour: "--ink", values: curve.reserved }), [curve])
  const peak = useMemo(() => peakPoint(curve, series, device.peak), [curve, series, device])
  const [kept, keep] = useState<{ readonly curve: SnapshotCurve; readonly point: number }>({ curve, point: Math.max(0, peak) })
  const cursor = kept.curve === curve ? kept.point : pointAt(curve.at_ns, kept.curve.at_ns[kept.point] ?? 0)
  const [selection, select] = useState<Interval | null>(null)
  const open = (): void => {
    if (selection) zoom(within(selection, whole))
    select(null)
  }
  const at = curve.at_ns[cursor] ?? 0
  const moment = momentOf(device.timed)
  return (
    <div class="curve-and-parts">
      <div>
        <Curve label="Memory over time" moments={curve.at_ns} until={untilOf(device.curve.at_ns)} series={series} line={reserved} marked={peak} cursor={cursor}
          {...(shown ? { shown } : {})} words={`${moment(at)}: ${bytes(totalAt(series, cursor))} allocated, ${bytes(curve.reserved[cursor] ?? 0)} reserved`}
          selection={selection} formatX={device.timed ? formatTick : moment} formatY={bytes} onCursor={(point) => keep({ curve, point })} opens="zooms into what is selected"
          onSelect={(area, growing) => (growing || area === null ? select(area) : zoom(within(area, whole)))} onOpen={open}
          onZoom={(step) => zoom(zoomed(shown ?? whole, whole, step))} />
        <p class="caption zoom-line">
          {shown ? <LinkButton onClick={() => zoom(whole)}>{device.timed ? `Show all ${moment(whole.to - whole.from)}` : "Show all events"}</LinkButton> : "Drag to zoom in; W, S, A, D and F as on the timeline."}
          {!curve.whole && " Of stretches with many events, the lowest and the highest levels are drawn."}
        </p>
      </div>
      <CategoryParts series={series} cursor={cursor} at={at} moment={moment} peak={device.peak} reserved={{ at: curve.reserved[cursor] ?? 0, peak: device.peak.reserved_bytes }}>
        {cursor === peak && <p class="caption">The peak is at {moment(device.peak.at_ns)}.</p>}
      </CategoryParts>
    </div>
  )
}

/** More of a long history, where a server has it. */
function useDetail(props: CurvePartProps, shown: Interval | null): SnapshotCurve | null {
  const id = runId.value
  if (id === null || shown === null || props.device.curve.whole || !source.value?.live) return null
  const asked = roundedStretch(shown)
  return valueOf(resourceOf<SnapshotCurve>(id, `${props.resource}?device=${encodeURIComponent(props.device.name)}&from=${asked.from}&to=${asked.to}`).value)
}

export function parseZoom(text: string | undefined, whole: Interval): Interval | null {
  const match = /^(\d{1,18})-(\d{1,18})$/.exec(text ?? "")
  const area = match && { from: Number(match[1]), to: Number(match[2]) }
  if (!area || area.to <= area.from || area.from >= whole.to) return null
  return within(area, whole)
}

/** The point of the peak: several events may share its moment. */
export function peakPoint(curve: SnapshotCurve, series: readonly Series[], peak: { readonly at_ns: number; readonly bytes: number }): number {
  return curve.at_ns.findIndex((ns, point) => ns === peak.at_ns && totalAt(series, point) === peak.bytes)
}
