/** Rows of a table that scrolls: only those in sight are in the page, and keys move through all of them. */
import type { JSX, RefObject } from "preact"
import { useEffect, useRef, useState } from "preact/hooks"

const ROW_PX = 28
const MARGIN_ROWS = 8

export interface RowsInSight {
  readonly scroller: RefObject<HTMLDivElement | null>
  readonly look: () => void // call when it is scrolled
  readonly first: number // of the rows to draw, and the one after the last
  readonly last: number
  readonly active: number // the row that the keys are on; -1: none
  readonly moveTo: (row: number) => number // brings the nearest row into sight and gives its number
  readonly leave: () => void
  readonly page: number // rows that PageUp and PageDown move by
}

export function useRowsInSight(count: number, rowPx = ROW_PX): RowsInSight {
  const scroller = useRef<HTMLDivElement>(null)
  const [sight, setSight] = useState({ top: 0, rows: 40 })
  const [active, setActive] = useState(-1)
  const look = (): void => {
    const box = scroller.current
    if (!box) return
    const [top, rows] = [Math.floor(box.scrollTop / rowPx), Math.ceil(box.clientHeight / rowPx)]
    setSight((before) => (before.top === top && before.rows === rows ? before : { top, rows }))
  }
  useEffect(() => {
    const observer = new ResizeObserver(look)
    if (scroller.current) observer.observe(scroller.current)
    return () => observer.disconnect()
  }, [])
  const moveTo = (row: number): number => {
    const nearest = Math.max(0, Math.min(count - 1, row))
    setActive(nearest)
    reveal(scroller.current, nearest, rowPx)
    return nearest
  }
  return {
    scroller, look, active, moveTo,
    first: Math.max(0, Math.min(sight.top, count) - MARGIN_ROWS),
    last: Math.min(count, sight.top + sight.rows + MARGIN_ROWS),
    leave: () => setActive(-1),
    page: Math.max(1, sight.rows - 2),
  }
}

function reveal(box: HTMLDivElement | null, row: number, rowPx: number): void {
  if (!box) return
  const top = row * rowPx
  const room = box.clientHeight - rowPx * 2
  if (top < box.scrollTop) box.scrollTop = top
  else if (top > box.scrollTop + room) box.scrollTop = top - room
}

/** The row that a key leads to; undefined: the key does not move. */
export function rowAfterKey(key: string, active: number, count: number, page: number): number | undefined {
  const rows: Readonly<Record<string, number>> = {
    ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: count - 1,
  }
  return rows[key]
}

/** The room of rows that are not in the page. */
export function Spacer(props: { readonly rows: number; readonly rowPx?: number }): JSX.Element | null {
  return props.rows > 0 ? <tr class="spacer" style={{ height: `${props.rows * (props.rowPx ?? ROW_PX)}px` }} aria-hidden="true" /> : null
}
