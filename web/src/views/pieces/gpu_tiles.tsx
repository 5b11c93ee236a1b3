/** How well the GPU was used, in a few numbers; each leads to the page that shows more. */
import type { JSX } from "preact"
import { linkTo } from "../../data/state"
import type { GpuTile } from "../../data/types"

export function GpuTiles(props: { readonly tiles: readonly GpuTile[] }): JSX.Element | null {
  if (props.tiles.length === 0) return null
  return (
    <section class="gpu-tiles">
      <h2>GPU</h2>
      <ul>
        {props.tiles.map((tile) => (
          <li key={tile.label}>
            <a href={linkTo({ view: tile.view })} title={tile.says}>
              <span>{tile.label}</span> <strong>{tile.value}</strong>
            </a>
          </li>
        ))}
      </ul>
    </section>
  )
}
