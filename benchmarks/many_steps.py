"""How the time of `diagnose`, of every analysis and of the report grows with the number of steps.

    python benchmarks/many_steps.py --steps 1600 12800 200000          # one kernel a step
    python benchmarks/many_steps.py --full --steps 1000 8000           # one of everything a step
    python benchmarks/many_steps.py --full --steps 1000 8000 --every   # and every analysis, and the report

Prints seconds of processor time a part, and how they grew against the steps: about 1 where the work is linear. Recordings are made in
`--work`, in the layout of torch.profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

SHORT_US, STEP_US = 100, 1000
HEADER = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 0,
    "record_shapes": 1,
    "profile_memory": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150109880320}],
}
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
GEMM = "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x32_kernel"
GRID = {"grid": [4, 1, 1], "block": [128, 1, 1]}


def event(category: str, name: str, start: float, dur: float, tid: int = 100, **args: Any) -> dict[str, Any]:
    """One span of the host, in microseconds."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": tid,
        "ts": start,
        "dur": dur,
        "args": args,
    }


def launched(category: str, name: str, start: float, dur: float, link: int, **args: Any) -> dict[str, Any]:
    """One span of the device."""
    known = {"device": 0, "stream": 7, "correlation": link, **args}
    return event(category, name, start, dur, 7, **known) | {"pid": 0}


def one_kernel(number: int) -> Iterator[dict[str, Any]]:
    """A step that adds once."""
    at = number * SHORT_US
    yield event("user_annotation", f"ProfilerStep#{number}", at, 90)
    yield event("cpu_op", "aten::add", at + 10, 20)
    yield event("cuda_runtime", "cudaLaunchKernel", at + 15, 5, correlation=number + 1)
    yield launched("kernel", KERNEL, at + 40, 30, number + 1, **GRID)


def one_of_everything(number: int) -> Iterator[dict[str, Any]]:
    """A step that loads, copies, multiplies, casts, concatenates, communicates, waits, and steps an optimizer."""
    at, link = number * STEP_US, 20 * number + 1
    yield event("user_annotation", f"ProfilerStep#{number}", at, 950)
    yield event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, 40)
    shapes: dict[str, Any] = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    calls: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
        ("aten::to", "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", {"bytes": 4096}),
        ("aten::mm", "kernel", GEMM, "cudaLaunchKernel", GRID),
        (
            "aten::_to_copy",
            "kernel",
            KERNEL.replace("CUDAFunctor_add", "direct_copy"),
            "cudaLaunchKernel",
            GRID,
        ),
        ("aten::cat", "kernel", "void at::native::CatArrayBatchedCopy<float>", "cudaLaunchKernel", GRID),
        ("aten::add", "kernel", KERNEL, "cudaLaunchKernel", GRID),
        ("aten::mul", "kernel", KERNEL.replace("add", "mul"), "cudaLaunchKernel", GRID),
        ("c10d::allreduce_", "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel", GRID),
    )
    for place, (op, kind, name, call, args) in enumerate(calls):
        begin = at + 60 + 50 * place
        yield event(
            "cpu_op",
            op,
            begin,
            40,
            **shapes,
            **{"Sequence number": link + place, "External id": link + place},
        )
        yield event("cuda_runtime", call, begin + 10, 5, correlation=link + place)
        yield launched(kind, name, begin + 30, 25, link + place, **args)
    yield event(
        "cpu_op", "MmBackward0", at + 450, 40, 101, **{"Sequence number": link + 1, "Fwd thread id": 1}
    )
    yield event("cuda_runtime", "cudaLaunchKernel", at + 460, 5, 101, correlation=link + 10)
    yield launched("kernel", GEMM, at + 480, 40, link + 10, **GRID)
    yield event("user_annotation", "Optimizer.step#Adam.step", at + 600, 80)
    yield event("cpu_op", "aten::addcmul_", at + 610, 30, **shapes)
    yield event("cuda_runtime", "cudaLaunchKernel", at + 620, 5, correlation=link + 11)
    yield launched("kernel", KERNEL, at + 640, 50, link + 11, **GRID)
    yield event("cpu_op", "aten::item", at + 700, 40, **shapes)
    yield event("cuda_runtime", "cudaMemcpyAsync", at + 702, 5, correlation=link + 12)
    yield launched("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", at + 712, 10, link + 12, bytes=4)
    yield event("cuda_runtime", "cudaStreamSynchronize", at + 708, 15)
    for shift, size in ((65, 512), (900, -512)):
        yield {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100,
               "ts": at + shift, "args": {"Addr": 4096 + number, "Bytes": size, "Device Type": 1, "Device Id": 0,
                                          "Total Allocated": 512 if size > 0 else 0, "Total Reserved": 4096}}  # fmt: skip


def write(file: Path, steps: int, *, full: bool = False) -> Path:
    """The recording of so many steps."""
    step = one_of_everything if full else one_kernel
    with file.open("w") as out:
        out.write(json.dumps(HEADER)[:-1] + ', "traceEvents": [\n')
        for number in range(steps):
            out.write(",\n" * bool(number) + ",\n".join(map(json.dumps, step(number))))
        out.write("\n]}")
    return file


def timed(parts: dict[str, float], name: str, work: Callable[[], object]) -> None:
    """Adds what the work took."""
    from foretrace.errors import ForetraceError

    began = time.process_time()
    with contextlib.suppress(ForetraceError):
        work()
    parts[name] = time.process_time() - began


def measure(file: Path, *, every: bool) -> dict[str, float]:
    """Seconds for each part."""
    import foretrace
    from foretrace import analyze
    from foretrace.commands import main

    def printed(*words: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main([*words, "--no-cache"])
        if code:
            raise SystemExit(f"{words}: exit code {code}")

    parts: dict[str, float] = {}
    timed(parts, "diagnose", lambda: printed("diagnose", str(file)))
    if every:
        trace = foretrace.open(file, cache=False)
        for analysis in analyze.ANALYSES:
            timed(parts, analysis.name, partial(analyze.run, trace, analysis.name))
        report = file.with_suffix(".html")
        timed(parts, "report", lambda: printed("report", str(file), "-o", str(report), "--force"))
        perfetto = file.with_suffix(".perfetto.json")
        timed(parts, "perfetto", lambda: printed("perfetto", str(file), "-o", str(perfetto), "--force"))
    return parts


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[1_600, 12_800])
    parser.add_argument("--full", action="store_true", help="one of everything a step, not one kernel")
    parser.add_argument("--every", action="store_true", help="time every analysis and the report too")
    parser.add_argument("--work", type=Path, help="folder for the recordings (default: one that goes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        taken: dict[int, dict[str, float]] = {}
        for steps in options.steps:
            file = write(work / f"{'full' if options.full else 'one'}_{steps}.json", steps, full=options.full)
            taken[steps] = measure(file, every=options.every)
    first, last = min(taken), max(taken)
    print("part".ljust(20), *(f"{steps:>10,}" for steps in taken), f"{'growth':>8}")
    for name in taken[first]:
        growth = taken[last][name] / max(taken[first][name], 1e-3) / (last / first)
        print(name.ljust(20), *(f"{parts[name]:>8.2f} s" for parts in taken.values()), f"{growth:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
