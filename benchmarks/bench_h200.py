"""Every table of docs/benchmarks.md, from the commands that stand there: .json and .md of each, in FOLDER/bench and in one tar.

    python benchmarks/bench_h200.py --out FOLDER               # on a GPU, about five minutes
    python benchmarks/bench_h200.py --out FOLDER --tiny        # the same kinds on a CPU with tiny sizes, to try the script
    python benchmarks/bench_h200.py --markdown FOLDER          # .md from the .json of a folder, where the GPU's machine had no polars

What has not begun when `--budget` seconds are over is left out, and said. The most wanted come first.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
QUICK = "--warmup-s 0.05 --least-s 0.1 --most-s 0.6 --force"
TINY = "--device cpu --warmup-s 0 --least-s 0 --most-s 0.05 --force"
# cuBLAS takes 32 MiB of workspace on Hopper unless told; this is what it takes on other GPUs: 2 x 4 MiB + 8 x 16 KiB.
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}


@dataclass(frozen=True)
class Table:
    """One command, by the name of its files; `tiny` stands in its place where sizes are to be small."""

    name: str
    command: str
    tiny: str
    environment: dict[str, str] = field(default_factory=dict)  # then in a process of its own


TABLES = (
    Table(
        "attention",
        "attention --d-model 32,64,128,256,512 --seq-len 64,128,256,1024,4096,8192,16384",
        "attention --d-model 8 --seq-len 8,16",
        WORKSPACE,
    ),
    Table(
        "transformer",
        "transformer --size small,medium --ctx 256,512 --precision fp32,bf16 --attention naive",
        "transformer --size 16x32x2x2 --ctx 8 --precision fp32,bf16 --attention naive",
    ),
    Table(
        "transformer_sizes",
        "transformer --size small,medium,large,xl,2.7B --ctx 512 --mode fwd,train --precision bf16",
        "transformer --size 16x32x2x2,16x32x1x2 --ctx 8 --mode fwd,train --precision bf16",
    ),
    Table("matmul", "matmul", "matmul --shape 16,17"),
    Table("precision", "precision --size medium --ctx 512 --attention naive", "precision --size 16x32x2x2 --ctx 8"),
    Table(
        "attention_fused",
        "attention --d-model 64,128 --seq-len 1024,4096,16384 --precision bf16 --impl naive,math,flash,efficient,cudnn --causal",
        "attention --d-model 8 --seq-len 8 --precision bf16 --impl naive,math,flash --causal",
    ),
    Table(
        "attention_tf32",
        "attention --compile --precision fp32,tf32 --d-model 32,64,128,256,512 --seq-len 64,128,256,1024,4096,8192,16384 --most-s 0.25",
        "attention --d-model 8 --seq-len 8",
    ),
    Table(
        "transformer_cold",
        "transformer --cold --size medium --ctx 512 --mode fwd_bwd --precision fp32 --attention naive",
        "transformer --cold --size 16x32x2x2 --ctx 8 --mode fwd_bwd",
    ),
    Table(
        "latency",
        "latency --batch 1,2,4,8,16,32,64 --precision bf16 --most-s 1",
        "latency --batch 1,2 --size 16x32x2x2 --ctx 8",
    ),
    Table(
        "transformer_context",
        "transformer --size 2.7B --ctx 64,128,256 --mode fwd --attention naive",
        "transformer --size 16x32x2x2 --ctx 8,16 --mode fwd --attention naive",
    ),
    Table(
        "collectives",
        "collectives --op all_reduce,all_gather --mib 1,16,64 --ranks 2 --backend gloo --device cpu",
        "collectives --mib 0.01",
    ),
)  # fmt: skip


def shown(table: Table, *, tiny: bool) -> str:
    """The command as one would type it."""
    said = [f"{name}={value}" for name, value in table.environment.items()]
    return " ".join((*said, "foretrace bench", table.tiny if tiny else table.command))


def run_table(table: Table, folder: Path, *, tiny: bool) -> int:
    """Runs one command; returns its exit code. Options that it has itself come last, and count."""
    kind, *own = shlex.split(table.tiny if tiny else table.command)
    common = shlex.split(TINY if tiny else QUICK)
    words = ["bench", kind, *common, *own, "-o", str(folder / f"{table.name}.json"), "--format", "json"]
    if table.environment:
        environment = {**os.environ, **table.environment}
        command = [sys.executable, "-m", "foretrace", *words]
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    from foretrace.commands import main as foretrace

    with redirect_stdout(io.StringIO()):
        return foretrace(words)


def write_markdown(folder: Path, *, tiny: bool = False) -> None:
    """A table as Markdown beside each .json of the folder, below its command."""
    from foretrace.bench import Benchmark
    from foretrace.present.text.bench_tables import markdown

    for table in TABLES:
        file = folder / f"{table.name}.json"
        if file.exists():
            found = Benchmark.from_dict(json.loads(file.read_text(encoding="utf-8")))
            text = f"`{shown(table, tiny=tiny)}`\n\n{markdown(found)}"
            file.with_suffix(".md").write_text(text, encoding="utf-8")


def run_peers(folder: Path, *, tiny: bool) -> int:
    """kernels_beside_peers.py, in a process of its own."""
    words = ["--out", str(folder / "peers.json")]
    words += ["--device", "cpu", "--turns", "1", "--seconds", "0.02"] if tiny else []
    done = subprocess.run(
        [sys.executable, str(HERE / "kernels_beside_peers.py"), *words], stdout=subprocess.PIPE, check=False
    )
    (folder / "peers.md").write_bytes(done.stdout)
    return done.returncode


def run_all(folder: Path, *, tiny: bool, budget_s: float, only: list[str] | None) -> tuple[list[str], int]:
    """Runs what there is time for; returns what to log, and the worst exit code."""
    began = time.monotonic()
    jobs: list[tuple[str, Callable[[], int]]] = [
        (table.name, partial(run_table, table, folder, tiny=tiny)) for table in TABLES
    ]
    jobs.insert(1, ("peers", partial(run_peers, folder, tiny=tiny)))
    log, codes = [], []
    for name, job in jobs:
        if only and name not in only:
            continue
        started = time.monotonic()
        if started - began > budget_s:
            log.append(f"{name}: left out, {budget_s:g} s are over")
        else:
            codes.append(job())
            log.append(f"{name}: exit code {codes[-1]}, {time.monotonic() - started:.1f} s")
        print(log[-1], file=sys.stderr, flush=True)
    return log, max(codes, default=1)


def main() -> int:
    """Runs all, and packs what they wrote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="the folder for bench.tar.gz and log.txt")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument(
        "--budget", type=float, default=300.0, help="seconds after which nothing more is begun"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tables alone; peers is one too")
    parser.add_argument(
        "--markdown", type=Path, metavar="FOLDER", help="only make .md of the .json in this folder"
    )
    args = parser.parse_args()
    if args.markdown:
        write_markdown(args.markdown)
        return 0
    if args.out is None:
        parser.error("--out is needed")
    folder = args.out / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    log, code = run_all(folder, tiny=args.tiny, budget_s=args.budget, only=args.only)
    missing = [name for name in ("polars", "isal") if not find_spec(name)]
    if missing:
        log.append(f"no {' and no '.join(missing)} here: make the tables with --markdown elsewhere")
    else:
        write_markdown(folder, tiny=args.tiny)
    (args.out / "log.txt").write_text("\n".join(log) + "\n", encoding="utf-8")
    with tarfile.open(args.out / "bench.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname="bench")
    print(f"{(args.out / 'bench.tar.gz').stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
