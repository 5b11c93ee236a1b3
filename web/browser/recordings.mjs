/** The recordings that the page is driven on: those of the repository always, those of the shared corpus where it is. */
import { existsSync, readFileSync } from "node:fs"
import { dirname, join, resolve } from "node:path"
import { fileURLToPath } from "node:url"

export const WEB = dirname(dirname(fileURLToPath(import.meta.url)))
export const REPOSITORY = dirname(WEB)
const CORPUS = resolve(process.env.FORETRACE_CORPUS ?? join(REPOSITORY, "..", "shared", "corpus"))

/** `run` is the name that the page gives it. `gpu`: kernels were recorded. */
export const OURS = [
  { name: "naive attention", run: "naive_attention", path: join(REPOSITORY, "src/foretrace/samples/naive_attention.json.gz"), gpu: true },
  { name: "slow data loader", run: "loader_serial", path: join(REPOSITORY, "docs/tutorials/recordings/loader_serial.json.zst"), gpu: true },
  { name: "CUDA graph", run: "reduce_overhead", path: join(REPOSITORY, "tests/traces/graphs/reduce_overhead.json.gz"), gpu: true },
  { name: "CPU only", run: "recompile_cpu", path: join(REPOSITORY, "tests/traces/compile/recompile_cpu.json.gz"), gpu: false },
]

export const SHARED = [
  { name: "naive_attention", run: "naive_attention.slow.rich", path: join(CORPUS, "h200/naive_attention.slow.rich.json.gz"), gpu: true },
  { name: "naive_attention, fixed", run: "naive_attention.fixed.rich", path: join(CORPUS, "h200/naive_attention.fixed.rich.json.gz"), gpu: true },
  { name: "slow_dataloader", run: "slow_dataloader.slow.rich", path: join(CORPUS, "h200/slow_dataloader.slow.rich.json.gz"), gpu: true },
  { name: "vLLM graph decode", run: "vllm_decode_graph_execution", path: join(CORPUS, "peers/tracelens/vllm_decode_graph_execution.json.gz"), gpu: true },
  { name: "four ranks", run: "rank0", path: join(CORPUS, "other/multirank_gloo"), gpu: true },
]

/** Made by `questionsTrace`: a gap of two milliseconds, and a step that waits for data. */
export const QUESTIONS = { name: "questions", run: "questions", path: null, gpu: true }

/** Made by `rankTrace`: every page has data. */
export const MADE = { name: "one of two ranks", run: "made_rank0", path: null, gpu: true }

export const isThere = (recording) => recording === MADE || existsSync(recording.path)
export const ALL = [...OURS, MADE, ...SHARED]

/** The pages of a recording by their names in the address, in the order of the navigation. */
export const PAGES = [...readFileSync(join(WEB, "src/views/index.ts"), "utf8").split("const BENCHMARK_VIEWS")[0].matchAll(/\{ name: "(\w+)", title: "(\w+)", key: "(.)"/g)].map(
  ([, name, title, key]) => ({ name, title, key }),
)

/** Strings of a recording that a careless page would obey. */
export const HOSTILE = {
  script: `<script>window.hacked=1</script><img src=x onerror="window.hacked=2">`,
  attribute: `"><svg onload=window.hacked=3>`,
  close: "</script></style><!--<script>window.hacked=4",
  link: "javascript:window.hacked=5",
  bidi: "kernel_\u202Egnp.exe\u2066\u200B_end",
  control: "ker\u0000nel\u001b[31m\u0007",
  long: `long_${"kernel<int, ".repeat(850)}_end`, // 10 kB
  markdown: "| a | b |\n[x](javascript:window.hacked=6) `</code>`",
}

/** A torch.profiler trace, three steps, in which everything that has a name has a hostile one. */
export function hostileTrace() {
  const names = Object.values(HOSTILE)
  const events = []
  const add = (cat, name, ts, dur, pid, tid, args = {}) => events.push({ ph: "X", cat, name, ts, dur, pid, tid, args })
  for (let step = 0; step < 3; step++) {
    const from = 1000 + step * 10000
    add("user_annotation", `ProfilerStep#${step + 5}`, from, 9900, 100, 100)
    names.forEach((name, number) => {
      const at = from + 100 + number * 1000
      const correlation = step * 100 + number + 1
      add("python_function", `${HOSTILE.close}.py(3): ${name}`, at, 900, 100, 100, { "Python id": correlation })
      add("cpu_op", name, at + 5, 800, 100, 100, { "External id": correlation, "Input Dims": [[name.slice(0, 50)]], "Input type": [HOSTILE.attribute] })
      add("cuda_runtime", "cudaLaunchKernel", at + 10, 5, 100, 100, { correlation, "External id": correlation })
      add("kernel", name, at + 50, 700, 0, 7, { correlation, "External id": correlation, device: 0, stream: 7, grid: [64, 1, 1], block: [128, 1, 1] })
    })
  }
  for (const [pid, name] of [[0, HOSTILE.script], [100, HOSTILE.bidi]]) events.push({ ph: "M", name: "process_name", pid, tid: 0, ts: 0, args: { name } })
  events.push({ ph: "M", name: "thread_name", pid: 100, tid: 100, ts: 0, args: { name: HOSTILE.attribute } })
  const deviceProperties = [{ id: 0, name: HOSTILE.script, totalGlobalMem: 1e10, computeMajor: 9, computeMinor: 0, numSms: 132 }]
  return JSON.stringify({ schemaVersion: 1, baseTimeNanoseconds: 0, deviceProperties, traceEvents: events })
}

/** One rank of two: three steps of matrix multiply and all-reduce with modules, shapes and allocations, so that every page has data. */
export function rankTrace(rank) {
  const events = []
  const add = (cat, name, ts, dur, pid, tid, args = {}) => events.push({ ph: "X", cat, name, ts, dur, pid, tid, args })
  const memory = (ts, addr, bytes, total) => events.push({ ph: "i", s: "t", cat: "cpu_instant_event", name: "[memory]", ts, pid: 100, tid: 100, args: { "Device Type": 1, "Device Id": rank, Addr: addr, Bytes: bytes, "Total Allocated": total, "Total Reserved": 4e8 } }) // prettier-ignore
  let correlation = 0
  const launch = (cat, name, ts, from, dur, stream, args = {}) => {
    correlation += 1
    add("cuda_runtime", "cudaLaunchKernel", ts, 4, 100, 100, { correlation, "External id": correlation })
    add(cat, name, from, dur, rank, stream, { correlation, "External id": correlation, device: rank, stream, grid: [264, 1, 1], block: [128, 1, 1], ...args })
  }
  for (let step = 0; step < 3; step++) {
    const from = 1000 + step * 10000
    add("user_annotation", `ProfilerStep#${step + 3}`, from, 9900, 100, 100)
    add("python_function", "nn.Module: Model_0", from + 50, 4000, 100, 100, { "Python id": step * 10 + 1, "Python module id": 0 })
    for (let layer = 0; layer < 4; layer++) {
      const at = from + 100 + layer * 900
      add("python_function", `nn.Module: Linear_${layer}`, at, 800, 100, 100, { "Python id": step * 10 + 2 + layer, "Python parent id": step * 10 + 1, "Python module id": layer })
      add("cpu_op", "aten::mm", at + 10, 600, 100, 100, { "External id": correlation + 1, "Input Dims": [[2048, 2048], [2048, 2048]], "Input type": ["c10::BFloat16", "c10::BFloat16"] })
      memory(at + 15, 0x1000 + layer, 8e6 * (layer + 1), 8e6 * (layer + 1) * (layer + 2) / 2)
      launch("kernel", `gemm_${layer}`, at + 20, at + 100, 500, 7)
    }
    const wait = rank === 0 ? 2500 : 1500
    add("cpu_op", "c10d::allreduce_", from + 4100, 100, 100, 100)
    launch("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", from + 4120, from + 4500, wait, 20, {
      "Collective name": "allreduce", "In msg nelems": 4194304, "Out msg nelems": 4194304, "Group size": 2, dtype: "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }) // prettier-ignore
    for (let layer = 3; layer >= 0; layer--) memory(from + 8000 + layer, 0x1000 + layer, -8e6 * (layer + 1), 8e6 * layer * (layer + 1) / 2)
  }
  const deviceProperties = [{ id: rank, name: "NVIDIA H200", totalGlobalMem: 150e9, computeMajor: 9, computeMinor: 0, numSms: 132 }]
  const distributedInfo = { backend: "nccl", rank, world_size: 2, pg_count: 1 }
  return JSON.stringify({ schemaVersion: 1, baseTimeNanoseconds: 0, record_shapes: 1, profile_memory: 1, with_stack: 1, with_modules: 1, distributedInfo, deviceProperties, traceEvents: events })
}

/**
 * Five steps of eight matrix multiplies. Between 102 and 104 ms the GPU waits for `aten::nonzero` in step 12; step 13
 * waits 21 ms for data instead of one.
 */
export function questionsTrace() {
  const events = []
  const add = (cat, name, ts, dur, pid, tid, args = {}) => events.push({ ph: "X", cat, name, ts, dur, pid, tid, args })
  let correlation = 0
  const launch = (name, ts, from, dur) => {
    correlation += 1
    add("cuda_runtime", "cudaLaunchKernel", ts, 10, 100, 100, { correlation, "External id": correlation })
    add("kernel", name, from, dur, 0, 7, { correlation, "External id": correlation, device: 0, stream: 7, grid: [264, 1, 1], block: [128, 1, 1] })
  }
  ;[0, 40_000, 80_000, 120_000, 180_000].forEach((from, step) => {
    const wait = step === 3 ? 21_000 : 1_000
    const begun = from + wait
    add("user_annotation", `ProfilerStep#${step + 10}`, from, step === 3 ? 59_990 : 39_990, 100, 100)
    add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", from + 5, wait - 10, 100, 100)
    for (let layer = 0; layer < 8; layer++) {
      const late = step === 2 && layer === 5
      const ts = late ? 103_890 : begun + 100 + layer * 100
      const runs = begun + 1_000 + layer * 4_000 + (step === 2 && layer >= 5 ? 2_000 : 0)
      if (late) add("cpu_op", "aten::nonzero", begun + 700, 103_950 - begun - 700, 100, 100, { "External id": correlation + 1 })
      else if (step !== 2 || layer < 5) add("cpu_op", "aten::mm", ts - 10, 60, 100, 100, { "External id": correlation + 1 })
      launch(`gemm_${layer}`, step === 2 && layer > 5 ? 104_000 + layer * 20 : ts, runs, 4_000)
    }
    add("cuda_runtime", "cudaDeviceSynchronize", from + wait + 25_000, 13_000, 100, 100)
  })
  const deviceProperties = [{ id: 0, name: "NVIDIA H200", totalGlobalMem: 150e9, computeMajor: 9, computeMinor: 0, numSms: 132 }]
  return JSON.stringify({ schemaVersion: 1, baseTimeNanoseconds: 0, deviceProperties, traceEvents: events })
}

/** What `foretrace bench attention -o FILE.json` writes: two widths over three lengths, of which one ran out of memory; times as long as `factor` says. */
export function benchDocument(factor) {
  const rows = [16, 32].flatMap((d_model) => [64, 256, 1024].map((seq_len) => {
    if (seq_len * d_model === 32768) return { d_model, seq_len, status: "OOM", reason: "CUDA out of memory" }
    const ms = (factor * d_model * seq_len ** 2) / 1e5
    const samples = [1, 1.001, 0.999, 1.002, 0.998, 1, 1.001, 0.999].map((noise) => noise * ms)
    return { d_model, seq_len, status: "OK", reason: null, median_ms: ms, low_ms: 0.98 * ms, high_ms: 1.02 * ms, avg_ms: ms, std_ms: 0.01 * ms, samples_ms: samples, calls: 1, stopped: "precise", peak_alloc_MiB: seq_len, clock_mhz: 1980, slowed_by: seq_len === 1024 ? "power cap" : null }
  })) // prettier-ignore
  const known = { schema: "foretrace.bench/1", kind: "attention", device: "NVIDIA H200", torch: "2.11.0", began: "2026-11-16T22:58:03+00:00", command: `foretrace bench ${HOSTILE.script}` }
  return JSON.stringify({ ...known, case: ["d_model", "seq_len"], notes: [HOSTILE.attribute], timing: { how: "single" }, clock: { by: "pynvml" }, rows })
}

const MIB = 1 << 20

/** What torch.cuda.memory._dump_snapshot writes: five steps that each keep `kept` MiB more at train.py:57, over 8 MiB of parameters. */
export function snapshotFile(kept) {
  const base = 1 << 28
  const frames = (...lines) => lines.map(([filename, line, name]) => ({ filename, line, name }))
  const main = ["/me/train.py", 90, "<module>"]
  const [parameter, forward, leak] = [frames(main), frames(["/me/model.py", 12, `forward ${HOSTILE.script}`], main), frames(["/me/train.py", 57, "remember"], main)]
  const trace = []
  const add = (action, addr, size, stack) => trace.push({ action, addr, size, stream: 0, time_us: 1000 * trace.length, frames: stack })
  const block = (address, size, stack) => ({ address, size, requested_size: size, state: stack ? "active_allocated" : "inactive", frames: stack ?? [] })
  add("segment_alloc", base, 64 * MIB, parameter)
  add("alloc", base, 8 * MIB, parameter)
  const held = [block(base, 8 * MIB, parameter), block(base + 8 * MIB, 16 * MIB, null)]
  for (let step = 0; step < 5; step++) {
    const at = base + (24 + step * kept) * MIB
    add("alloc", base + 8 * MIB, 16 * MIB, forward)
    add("alloc", at, kept * MIB, leak)
    add("free_requested", base + 8 * MIB, 16 * MIB, forward)
    add("free_completed", base + 8 * MIB, 16 * MIB, forward)
    held.push(block(at, kept * MIB, leak))
  }
  held.push(block(base + (24 + 5 * kept) * MIB, (40 - 5 * kept) * MIB, null))
  const size = (8 + 5 * kept) * MIB
  const segment = { device: 0, address: base, total_size: 64 * MIB, allocated_size: size, active_size: size, requested_size: size, stream: 0, segment_type: "large", frames: [], blocks: held }
  return Buffer.concat([Buffer.from([0x80, 2]), ...pickled({ segments: [segment], device_traces: [trace], allocator_settings: {} }), Buffer.from(".")])
}

/** Plain data as a pickle of protocol 2. */
function pickled(value) {
  const number = (code, size) => {
    const bytes = Buffer.alloc(5)
    bytes.write(code, "latin1")
    bytes.writeInt32LE(size, 1)
    return bytes
  }
  if (typeof value === "number") return [number("J", value)]
  if (typeof value === "string") return [number("X", Buffer.byteLength(value)), Buffer.from(value)]
  if (Array.isArray(value)) return [Buffer.from("]("), ...value.flatMap(pickled), Buffer.from("e")]
  return [Buffer.from("}("), ...Object.entries(value).flatMap(([key, each]) => [...pickled(key), ...pickled(each)]), Buffer.from("u")]
}
