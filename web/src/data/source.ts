/**
 * Where the page's data comes from: a server, or parts of the report's own file. Both give the same bytes.
 *
 * In a report every resource is gzip, then base64, cut into pieces of at most 6 MiB:
 * `<script type="application/gzip+base64" data-resource="RUN/overview" data-part="0">`; the list of runs is "runs".
 */
import type { TimelinePayload } from "./payload"
import { beginTimelineStream, readFindingsStream, readTimelineStream } from "./payload_stream"
import { parseJson } from "../base/json"
import type { Runs, SpanDetail } from "./types"

export interface Source {
  readonly live: boolean
  runs(): Promise<Runs>
  get<T>(run: string, resource: string): Promise<T>
  /**
   * Comes as soon as it can be drawn; its `rest` follows. `quick` does not wait for the diagnosis: no span then has its
   * finding, which `findingsOf` brings later.
   */
  timeline(run: string, quick?: boolean): Promise<TimelinePayload>
  findingsOf(run: string): Promise<Uint8Array>
  window(run: string, from: number, to: number, px: number, quick?: boolean): Promise<TimelinePayload>
  span(run: string, id: number): Promise<SpanDetail>
}

/** A resource that failed to load, in words that a person can act on. */
export class ResourceError extends Error {}

/** Set by the server where the words are the answer. */
const NOT_RECORDED = "Foretrace-Not-Recorded"

export class HttpSource implements Source {
  readonly live = true
  readonly #base: string
  #listed: { readonly text: string; readonly runs: Runs } | null = null

  constructor(base = "api") {
    this.#base = base
  }

  /** The same object as before where nothing has changed: it is asked for every few seconds, and a large job has a run for every rank. */
  async runs(): Promise<Runs> {
    const text = await (await this.#fetch("runs")).text()
    if (this.#listed?.text !== text) this.#listed = { text, runs: parseJson<Runs>(text) }
    return this.#listed.runs
  }

  async get<T>(run: string, resource: string): Promise<T> {
    return parseJson<T>(await (await this.#fetch(`runs/${encodeURIComponent(run)}/${resource}`)).text())
  }

  timeline(run: string, quick = false): Promise<TimelinePayload> {
    return this.#binary(run, quick ? "timeline?findings=no" : "timeline", beginTimelineStream)
  }

  async findingsOf(run: string): Promise<Uint8Array> {
    const response = await this.#fetch(`runs/${encodeURIComponent(run)}/timeline?only=finding`)
    return readFindingsStream(bodyOf(response))
  }

  window(run: string, from: number, to: number, px: number, quick = false): Promise<TimelinePayload> {
    const query = `from=${Math.floor(from)}&to=${Math.ceil(to)}&px=${Math.round(px)}${quick ? "&findings=no" : ""}`
    return this.#binary(run, `timeline/window?${query}`, readTimelineStream)
  }

  span(run: string, id: number): Promise<SpanDetail> {
    return this.get(run, `span/${id}`)
  }

  async #binary(run: string, resource: string, read: typeof readTimelineStream): Promise<TimelinePayload> {
    const response = await this.#fetch(`runs/${encodeURIComponent(run)}/${resource}`)
    return read(bodyOf(response))
  }

  async #fetch(path: string): Promise<Response> {
    const response = await fetch(`${this.#base}/${path}`, { credentials: "same-origin" }).catch(() => null)
    if (response === null) throw new ResourceError("The server is not responding. Is foretrace serve still running?")
    if (!response.ok || response.headers.has(NOT_RECORDED)) throw new ResourceError(await reasonOf(response))
    return response
  }
}

function bodyOf(response: Response): ReadableStream<Uint8Array> {
  if (response.body === null) throw new ResourceError("The server sent an empty response.")
  return response.body
}

/** What the server says about a failure: {"says": ...} when it is ours, else the status. */
async function reasonOf(response: Response): Promise<string> {
  const text = await response.text().catch(() => "")
  try {
    const body = JSON.parse(text) as { readonly says?: unknown; readonly error?: unknown }
    const says = body.says ?? body.error
    if (typeof says === "string") return says
  } catch {
    // Not JSON: a proxy's page, or plain text.
  }
  if (response.status === 401) return "The token is missing from this address: open the full address that foretrace serve printed."
  return text && text.length < 300 ? text : `The server responded with ${response.status} ${response.statusText}`.trim()
}

export class EmbeddedSource implements Source {
  readonly live = false
  readonly #document: Document
  readonly #details = new Map<string, Promise<Readonly<Record<string, SpanDetail>>>>()

  constructor(page: Document = document) {
    this.#document = page
  }

  static present(page: Document = document): boolean {
    return page.querySelector('script[data-resource="runs"]') !== null
  }

  runs(): Promise<Runs> {
    return this.#json("runs")
  }

  get<T>(run: string, resource: string): Promise<T> {
    return this.#json(`${run}/${resource}`)
  }

  async timeline(run: string): Promise<TimelinePayload> {
    return beginTimelineStream(this.#stream(`${run}/timeline`))
  }

  async findingsOf(run: string): Promise<Uint8Array> {
    return readFindingsStream(this.#stream(`${run}/timeline`))
  }

  window(): Promise<TimelinePayload> {
    return Promise.reject(new ResourceError("A report holds its whole timeline, so it has no windows."))
  }

  async span(run: string, id: number): Promise<SpanDetail> {
    let details = this.#details.get(run)
    if (details === undefined) {
      details = this.get<Readonly<Record<string, SpanDetail>>>(run, "spans")
      this.#details.set(run, details)
    }
    const detail = (await details)[String(id)]
    if (!detail) throw new ResourceError("This report does not include this span's details; foretrace serve shows them.")
    return detail
  }

  async #json<T>(resource: string): Promise<T> {
    return parseJson<T>(new TextDecoder().decode(await this.#bytes(resource)))
  }

  async #bytes(resource: string): Promise<Uint8Array> {
    return new Uint8Array(await new Response(this.#stream(resource)).arrayBuffer())
  }

  #stream(resource: string): ReadableStream<Uint8Array<ArrayBuffer>> {
    const parts = [...this.#document.querySelectorAll<HTMLScriptElement>("script[data-resource]")]
      .filter((part) => part.dataset["resource"] === resource)
      .sort((a, b) => Number(a.dataset["part"]) - Number(b.dataset["part"]))
    if (parts.length === 0) throw new ResourceError("Not included in this report; foretrace serve shows it.")
    return new Blob(parts.map((part) => fromBase64(part.textContent ?? ""))).stream().pipeThrough(new DecompressionStream("gzip"))
  }
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const native = Uint8Array as unknown as { readonly fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }
  if (native.fromBase64) return native.fromBase64(text)
  const binary = atob(text.trim())
  return Uint8Array.from(binary, (character) => character.charCodeAt(0))
}
