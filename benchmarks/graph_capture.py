"""How many kernels of a replayed CUDA graph get the operator, module and shapes that the same program has in eager mode.

    python benchmarks/graph_capture.py record OUT      # on a machine with a GPU: torch and the standard library only, under 40 s
    python benchmarks/graph_capture.py judge OUT       # anywhere with Foretrace

`record` runs a decode step of a small transformer, each way in a process of its own:

    eager      as it is: which operator, module and shapes each kernel belongs to (the truth)
    same       captured into a CUDA graph and replayed, all in one recording
    apart      the capture in one recording, the replays in another
    sizes      captured for four batch sizes, as servers do; two of them replayed
    branches   a model whose attention and MLP run on two streams, captured and replayed
    branches_eager   the truth for that

`judge` reads the truth with the standard library alone: kernel -> launch by correlation id -> operator by External id -> the
modules around it by time. Replayed kernels are compared with the kernels of one eager step: in order where both run the same
names in the same order, otherwise the kernels of each name as a set. It prints the share of GPU time in graphs that Foretrace
attributed, and how many attributions have the operator, the module and the shapes of the truth.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import gzip
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAYS = ("eager", "same", "apart", "sizes", "branches_eager", "branches")
STEPS = 3
SIZES = (8, 4, 2, 1)  # captured from the largest down, as servers do
REPLAYED = (4, 2)
WAY_SECONDS = 60  # for one process, before it is given up


# --- recording: torch and the standard library only


def record(out: Path) -> int:
    """Records every way in a process of its own; says which failed and goes on."""
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for way in WAYS:
        began = time.monotonic()
        command = [sys.executable, __file__, "one", way, str(out)]
        try:
            code = subprocess.run(command, check=False, timeout=WAY_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = -1
        print(f"{way}: {'recorded' if code == 0 else f'failed ({code})'} in {time.monotonic() - began:.1f} s")
        failed += [way] if code else []
    return 1 if failed else 0


def record_one(way: str, out: Path) -> int:
    """Records one way."""
    # As torch.compile sets them where it uses CUDA graphs: CUPTI that is torn down between recordings loses graphs.
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        model = decoder(torch, parallel=way.startswith("branches"))
        inputs = {
            size: (
                torch.zeros(size, dtype=torch.long, device="cuda"),
                torch.zeros(size, dtype=torch.long, device="cuda"),
            )
            for size in (SIZES if way == "sizes" else SIZES[:1])
        }
        warm_up(torch, model, inputs)
        with profiler(torch):  # the first recording starts CUPTI, which is slow
            model(*inputs[SIZES[0]])
            torch.cuda.synchronize()
        {
            "eager": record_eager,
            "branches_eager": record_eager,
            "same": record_same,
            "branches": record_same,
            "apart": record_apart,
            "sizes": record_same,
        }[way](torch, model, inputs, out / way)
    return 0


def decoder(torch: Any, *, parallel: bool) -> Any:
    """A decoder-only transformer with a cache of keys and values, for one new token a sequence."""
    from torch import nn

    functional = nn.functional
    width, heads, cached, layers, words = 1024, 16, 256, 4, 8192

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.keys = nn.Parameter(torch.randn(SIZES[0], heads, cached, width // heads))
            self.values = nn.Parameter(torch.randn(SIZES[0], heads, cached, width // heads))

        def forward(self, hidden: Any, at: Any) -> Any:
            size = hidden.shape[0]
            query, key, value = self.qkv(hidden).view(size, 3, heads, 1, -1).unbind(1)
            rows = torch.arange(size, device=hidden.device)
            self.keys.data[rows, :, at] = key[:, :, 0]
            self.values.data[rows, :, at] = value[:, :, 0]
            mixed = functional.scaled_dot_product_attention(query, self.keys[:size], self.values[:size])
            return self.out(mixed.reshape(size, width))

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, 2 * width, bias=False)
            self.up = nn.Linear(width, 2 * width, bias=False)
            self.down = nn.Linear(2 * width, width, bias=False)

        def forward(self, hidden: Any) -> Any:
            return self.down(functional.silu(self.gate(hidden)) * self.up(hidden))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.mlp = Attention(), Gated()
            self.other = torch.cuda.Stream() if parallel else None

        def forward(self, hidden: Any, at: Any) -> Any:
            if self.other is None:
                hidden = hidden + self.attention(self.before(hidden), at)
                return hidden + self.mlp(self.between(hidden))
            here = torch.cuda.current_stream()
            self.other.wait_stream(here)
            with torch.cuda.stream(self.other):
                gated = self.mlp(self.between(hidden))
            mixed = self.attention(self.before(hidden), at)
            here.wait_stream(self.other)
            return hidden + mixed + gated

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, tokens: Any, at: Any) -> Any:
            hidden = self.words(tokens)
            for layer in self.layers:
                hidden = layer(hidden, at)
            return self.head(self.norm(hidden)).argmax(-1)

    return Decoder().to("cuda", torch.bfloat16).eval()


def warm_up(torch: Any, model: Any, inputs: dict[int, Any]) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for given in inputs.values():
            for _ in range(3):
                model(*given)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def profiler(torch: Any) -> Any:
    profile = torch.profiler
    return profile.profile(
        activities=[profile.ProfilerActivity.CPU, profile.ProfilerActivity.CUDA],
        record_shapes=True,
        with_stack=True,
    )


def record_eager(torch: Any, model: Any, inputs: dict[int, Any], folder: Path) -> None:
    with profiler(torch) as recorded:
        for step in range(STEPS):
            with torch.profiler.record_function(f"eager step {step}"):
                model(*inputs[SIZES[0]])
                torch.cuda.synchronize()
    save(recorded, folder, "trace")


def capture(torch: Any, model: Any, inputs: dict[int, Any]) -> dict[int, Any]:
    graphs, pool = {}, None
    for size, given in inputs.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            model(*given)
        pool = graph.pool()
        graphs[size] = graph
    torch.cuda.synchronize()
    return graphs


def replay(torch: Any, graphs: dict[int, Any]) -> None:
    for size in [size for size in REPLAYED if size in graphs] or list(graphs):
        for _ in range(STEPS):
            with torch.profiler.record_function(f"execute_context_0(0)_generation_{size}({size})"):
                graphs[size].replay()
            torch.cuda.synchronize()


def record_same(torch: Any, model: Any, inputs: dict[int, Any], folder: Path) -> None:
    with profiler(torch) as recorded:
        replay(torch, capture(torch, model, inputs))
    save(recorded, folder, "trace")


def record_apart(torch: Any, model: Any, inputs: dict[int, Any], folder: Path) -> None:
    with profiler(torch) as recorded:
        graphs = capture(torch, model, inputs)
    save(recorded, folder, "capture")
    with profiler(torch) as recorded:
        replay(torch, graphs)
    save(recorded, folder, "trace")


def save(recorded: Any, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / f"{name}.json"
    recorded.export_chrome_trace(str(plain))
    with gzip.open(folder / f"{name}.json.gz", "wb") as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


# --- judging: Foretrace for what it says, the standard library for the truth


@dataclass(frozen=True)
class Belongs:
    """What a kernel belongs to."""

    op: str | None
    modules: tuple[str, ...]
    shapes: str | None


@dataclass(frozen=True)
class Node:
    """One piece of GPU work, by name, and what it belongs to; its time counts for shares."""

    name: str
    dur_ns: float
    belongs: Belongs


def judge(out: Path) -> int:
    """Prints a line for each way that was recorded; 1 where one could not be judged or disagrees with the truth."""
    worst = 0
    for way in ("same", "apart", "sizes", "branches"):
        trace = out / way / "trace.json.gz"
        if not trace.exists():
            print(f"{way}: not recorded")
            worst = 1
            continue
        try:
            ok = judge_way(way, out)
        except Exception:  # the other ways are judged all the same
            traceback.print_exc()
            ok = False
        worst = worst if ok else 1
    return worst


def judge_way(way: str, out: Path) -> bool:
    """Prints what was attributed, and how much of it agrees with eager mode."""
    recorded = out / way / "trace.json.gz"
    apart = out / way / "capture.json.gz"
    launches = replayed(recorded, [apart] if apart.exists() else [])
    nodes = [node for launch in launches for node in launch]
    total_ns = sum(node.dur_ns for node in nodes)
    known_ns = sum(node.dur_ns for node in nodes if node.belongs.op)
    share = 100 * known_ns / total_ns if total_ns else 0.0
    head = f"{way}: {len(launches)} replays, {len(nodes)} nodes, {share:.1f} % of their GPU time attributed"
    facts = recorded_facts(recorded)
    if way == "sizes":
        right = shapes_of_sizes(recorded, launches)
        print(
            f"{head}; of {len(launches)} replays, the shapes of {right} are those of the size that ran; {facts}"
        )
        return share >= 80 and right == len(launches)
    eager = out / ("branches_eager" if way == "branches" else "eager") / "trace.json.gz"
    if not eager.exists():
        print(f"{head}; no eager recording to compare with")
        return False
    truth = eager_steps(eager)[-1]
    agreed = collections.Counter[str]()
    for launch in launches:
        agreed += compared(launch, truth)
    whole = agreed["compared"]
    said = ", ".join(f"{what} of {agreed[what]}" for what in ("op", "module", "shapes"))
    print(
        f"{head}; of {whole} nodes with a counterpart in eager mode, the truth agrees with the {said}; {facts}"
    )
    return share >= 80 and whole > 0 and agreed["op"] >= 0.98 * whole


def compared(launch: list[Node], truth: list[Node]) -> collections.Counter[str]:
    """How many nodes have a counterpart, and of how many op, module and shapes are as there."""
    counts = collections.Counter[str]()
    pairs = in_order(launch, truth)
    if len(pairs) >= 0.9 * min(len(launch), len(truth)):
        for node, true in pairs:
            counts["compared"] += 1
            counts["op"] += node.belongs.op == true.belongs.op
            counts["module"] += node.belongs.modules == true.belongs.modules
            counts["shapes"] += node.belongs.shapes == true.belongs.shapes
        return counts
    # Branches run in another order: the kernels of each name as sets.
    for name in {node.name for node in truth}:
        said = [node.belongs for node in launch if node.name == name]
        true_ones = [node.belongs for node in truth if node.name == name]
        counts["compared"] += min(len(said), len(true_ones))
        counts["op"] += common((item.op for item in said), (item.op for item in true_ones))
        counts["module"] += common((item.modules for item in said), (item.modules for item in true_ones))
        counts["shapes"] += common((item.shapes for item in said), (item.shapes for item in true_ones))
    return counts


def common(left: Any, right: Any) -> int:
    return sum((collections.Counter(left) & collections.Counter(right)).values())


def in_order(launch: list[Node], truth: list[Node]) -> list[tuple[Node, Node]]:
    """Nodes and kernels of eager mode that stand for one another, by their names in order."""
    left, right = [node.name for node in launch], [node.name for node in truth]
    if left == right:
        return list(zip(launch, truth, strict=True))
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        (launch[block.a + offset], truth[block.b + offset])
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def recorded_facts(path: Path) -> str:
    """What the file tells of graphs, for those who match them: node ids, their order, streams."""
    work = [event for event in events_of(path) if event.get("cat") in DEVICE]
    ids = [event["args"] for event in work if event["args"].get("graph node id")]
    if not ids:
        streams = len({event["args"].get("stream") for event in work})
        return f"no graph node ids, {streams} streams"
    by_launch = collections.defaultdict(list)
    for event in sorted(work, key=lambda event: float(event["ts"])):
        if event["args"].get("graph node id"):
            by_launch[event["args"]["correlation"]].append(event["args"]["graph node id"])
    ordered = sum(nodes == sorted(nodes) for nodes in by_launch.values())
    graphs = sorted({item.get("graph id") for item in ids if item.get("graph id") is not None})
    return f"graph ids {graphs}, node ids in order of start in {ordered} of {len(by_launch)} replays"


def eager_steps(path: Path) -> list[list[Node]]:
    """The kernels of each step in order of start, with what they belong to; the standard library alone."""
    events = events_of(path)
    steps = [
        event
        for event in events
        if event["name"].startswith("eager step") and event["cat"] == "user_annotation"
    ]
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ops = {event["args"]["External id"]: event for event in events if event.get("cat") == "cpu_op"}
    modules = [
        event for event in events
        if event.get("cat") == "python_function" and event["name"].startswith("nn.Module: ")
    ]  # fmt: skip
    modules.sort(key=lambda event: float(event["ts"]))
    found = []
    for step in sorted(steps, key=lambda event: float(event["ts"])):
        nodes = []
        for event in events:
            if event.get("cat") not in DEVICE:
                continue
            call = calls.get(event["args"].get("correlation"))
            if call is None or not inside(call, step):
                continue
            op = ops.get(event["args"].get("External id", call["args"].get("External id")))
            around = [
                module["name"].removeprefix("nn.Module: ") for module in modules if inside(call, module)
            ]
            shapes = op["args"].get("Input Dims") if op else None
            belongs = Belongs(op["name"] if op else None, tuple(around), text_of(shapes))
            nodes.append((float(event["ts"]), Node(event["name"], 1e3 * float(event["dur"]), belongs)))
        found.append([node for _, node in sorted(nodes, key=lambda item: item[0])])
    return found


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    start = float(inner["ts"])
    return bool(
        inner["tid"] == outer["tid"]
        and float(outer["ts"]) <= start < float(outer["ts"]) + float(outer["dur"])
    )


def text_of(shapes: Any) -> str | None:
    if isinstance(shapes, str):
        shapes = json.loads(shapes)
    return None if shapes is None else json.dumps(shapes, separators=(",", ":"))


def replayed(recorded: Path, captures: list[Path]) -> list[list[Node]]:
    """The nodes of each graph launch in order of start, with what Foretrace says they belong to."""
    from foretrace.ingest import open_trace

    trace = open_trace(recorded, cache=False, capture_traces=captures)
    spans, names = trace.spans, trace.spans["name"].cast(str)
    parents = spans["parent_id"].to_list()
    shapes = dict(trace.ops.select("span_id", "shapes").iter_rows())
    launches = [
        call for call, name in zip(spans["id"].to_list(), names.to_list(), strict=True)
        if name in ("cudaGraphLaunch", "hipGraphLaunch")
    ]  # fmt: skip
    found = []
    for launch in launches:
        work = trace.device_spans.filter(trace.device_spans["launch_id"] == launch).sort("start_ns")
        nodes = []
        for name, dur_ns, op in work.select("name", "dur_ns", "op_id").iter_rows():
            chain = list(around_of(op, parents))
            modules = [
                names[at].removeprefix("nn.Module: ") for at in chain if names[at].startswith("nn.Module: ")
            ]
            said = Belongs(
                None if op is None else names[op], tuple(reversed(modules)), text_of(shapes.get(op))
            )
            nodes.append(Node(str(name), dur_ns, said))
        found.append(nodes)
    return [nodes for nodes in found if nodes]


def around_of(span: int | None, parents: list[int | None]) -> Any:
    while span is not None:
        yield span
        span = parents[span]


def shapes_of_sizes(recorded: Path, launches: list[list[Node]]) -> int:
    """Launches whose products all have the rows of the batch size that the range around the launch names."""
    events = events_of(recorded)
    ranges = sorted(
        (
            event
            for event in events
            if event["cat"] == "user_annotation" and event["name"].startswith("execute_")
        ),
        key=lambda event: float(event["ts"]),
    )
    sizes = [int(event["name"].rpartition("(")[2].rstrip(")")) for event in ranges]
    right = 0
    for size, launch in zip(sizes, launches, strict=False):
        products = [node.belongs.shapes for node in launch if node.belongs.op in ("aten::mm", "aten::addmm")]
        right += bool(products) and all(shapes and json.loads(shapes)[0][0] == size for shapes in products)
    return right


def main() -> int:
    """Records, or judges what was recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "judge"):
        commands.add_parser(name).add_argument("out", type=Path)
    one = commands.add_parser("one", help="one way, in this process")
    one.add_argument("way", choices=WAYS)
    one.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.command == "one":
        return record_one(args.way, args.out)
    return record(args.out) if args.command == "record" else judge(args.out)


if __name__ == "__main__":
    sys.exit(main())
