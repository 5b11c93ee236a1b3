/**
 * Ids of the spans as they travel: each as the difference to the one before, in a byte. A row's ids rise slowly, so ten
 * million take ten megabytes. A difference of 255 stands for an id that is given whole.
 */

const WHOLE = 255
const BLOCK = 64
const REMEMBERED = 4096

/** What a column of ids can be asked; a Uint32Array can, too. */
export interface Ids extends Iterable<number> {
  readonly length: number
  at(position: number): number | undefined
  indexOf(id: number): number
}

/** Where the wanted ids stand, in order. */
export function positionsOf(ids: Ids, wanted: ReadonlySet<number>): Uint32Array {
  const found: number[] = []
  if (ids instanceof PackedIds) ids.forEach((id, position) => void (wanted.has(id) && found.push(position)))
  else for (let at = 0; at < ids.length; at++) if (wanted.has(ids.at(at)!)) found.push(at)
  return Uint32Array.from(found)
}

export class PackedIds implements Ids {
  readonly length: number
  readonly #steps: Uint8Array
  readonly #given: Float64Array
  readonly #before: Uint32Array // the id before each block
  readonly #givenBefore: Uint32Array // how many ids were given whole before it
  readonly #positions = new Map<number, number>()

  constructor(steps: Uint8Array, given: Float64Array) {
    const blocks = Math.ceil(steps.length / BLOCK)
    this.length = steps.length
    this.#steps = steps
    this.#given = given
    this.#before = new Uint32Array(blocks)
    this.#givenBefore = new Uint32Array(blocks)
    let id = 0
    let next = 0
    for (let position = 0; position < steps.length; position++) {
      if (position % BLOCK === 0) {
        this.#before[position / BLOCK] = id
        this.#givenBefore[position / BLOCK] = next
      }
      const step = steps[position]!
      id = step === WHOLE ? given[next++]! : id + step
    }
    if (next !== given.length) throw new Error("the payload is missing a span's id")
  }

  *[Symbol.iterator](): IterableIterator<number> {
    for (let position = 0; position < this.length; position++) yield this.at(position)!
  }

  at(position: number): number | undefined {
    if (position < 0 || position >= this.length) return undefined
    const block = Math.floor(position / BLOCK)
    let id = this.#before[block]!
    let next = this.#givenBefore[block]!
    for (let at = block * BLOCK; at <= position; at++) {
      const step = this.#steps[at]!
      id = step === WHOLE ? this.#given[next++]! : id + step
    }
    return id
  }

  /** Remembers what was asked: the ends of a flow are looked up in every frame. */
  indexOf(id: number): number {
    const known = this.#positions.get(id)
    if (known !== undefined) return known
    if (this.#positions.size >= REMEMBERED) this.#positions.clear()
    const position = this.#search(id)
    this.#positions.set(id, position)
    return position
  }

  /** Each id with its position, without searching for any. */
  forEach(use: (id: number, position: number) => void): void {
    let id = 0
    let next = 0
    for (let position = 0; position < this.length; position++) {
      const step = this.#steps[position]!
      id = step === WHOLE ? this.#given[next++]! : id + step
      use(id, position)
    }
  }

  #search(wanted: number): number {
    let id = 0
    let next = 0
    for (let position = 0; position < this.length; position++) {
      const step = this.#steps[position]!
      id = step === WHOLE ? this.#given[next++]! : id + step
      if (id === wanted) return position
    }
    return -1
  }
}
