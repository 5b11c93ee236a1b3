"""Every table of docs/benchmarks.md, from the commands that stand there: one .md and one .json each, in one tar.

    python benchmarks/bench_h200.py --out FOLDER               # on a GPU, about two minutes
    python benchmarks/bench_h200.py --out FOLDER --tiny        # the same commands on a CPU with tiny sizes, to try the script

What has not begun when `--budget` seconds are over is left out, and said. The most wanted come first.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
import sys
import tarfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field
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
        "transformer --size medium --ctx 512 --precision fp32,tf32,bf16,fp16 --attention naive",
        "transformer --size 16x32x2x2 --ctx 8 --precision fp32,bf16 --attention naive",
    ),
    Table(
        "transformer_sizes",
        "transformer --size small,medium,large,xl,2.7B --ctx 512 --mode fwd,train --precision bf16",
        "transformer --size 16x32x2x2,16x32x1x2 --ctx 8 --mode fwd,train --precision bf16",
    ),
    Table("matmul", "matmul", "matmul --shape 16,17"),
    Table("precision", "precision --size medium --ctx 512", "precision --size 16x32x2x2 --ctx 8"),
    Table(
        "attention_fused",
        "attention --d-model 64,128 --seq-len 1024,4096,16384 --precision bf16 --impl naive,math,flash,efficient,cudnn --causal",
        "attention --d-model 8 --seq-len 8 --precision bf16 --impl naive,math,flash --causal",
    ),
    Table("attention_tf32", "attention --d-model 64,512 --seq-len 1024,8192 --precision fp32,tf32", "attention --d-model 8 --seq-len 8"),
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


def words_of(table: Table, folder: Path, *, tiny: bool) -> list[str]:
    """The command's words; options that it has itself come last, and count."""
    kind, *own = shlex.split(table.tiny if tiny else table.command)
    common = shlex.split(TINY if tiny else QUICK)
    return ["bench", kind, *common, *own, "-o", str(folder / f"{table.name}.json"), "--format", "md"]


def run_table(table: Table, folder: Path, *, tiny: bool) -> int:
    """Runs one command; returns its exit code."""
    words = words_of(table, folder, tiny=tiny)
    if table.environment:
        environment = {**os.environ, **table.environment}
        done = subprocess.run(
            [sys.executable, "-m", "foretrace", *words], env=environment, stdout=subprocess.PIPE, check=False
        )
        code, text = done.returncode, done.stdout.decode()
    else:
        from foretrace.commands import main as foretrace

        with redirect_stdout(io.StringIO()) as printed:
            code = foretrace(words)
        text = printed.getvalue()
    said = " ".join(f"{name}={value}" for name, value in table.environment.items())
    shown = f"{said} foretrace bench {table.tiny if tiny else table.command}".strip()
    (folder / f"{table.name}.md").write_text(f"`{shown}`\n\n{text}", encoding="utf-8")
    return code


def run_peers(folder: Path, *, tiny: bool) -> int:
    """kernels_beside_peers.py, in a process of its own."""
    words = ["--out", str(folder / "peers.json")]
    words += ["--device", "cpu", "--turns", "1", "--seconds", "0.02"] if tiny else []
    done = subprocess.run(
        [sys.executable, str(HERE / "kernels_beside_peers.py"), *words], stdout=subprocess.PIPE, check=False
    )
    (folder / "peers.md").write_bytes(done.stdout)
    return done.returncode


def main() -> int:
    """Runs all, and packs what they wrote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder for bench.tar.gz and log.txt")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument(
        "--budget", type=float, default=135.0, help="seconds after which nothing more is begun"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tables alone; peers is one too")
    args = parser.parse_args()
    folder = args.out / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    jobs = [(table.name, lambda table=table: run_table(table, folder, tiny=args.tiny)) for table in TABLES]
    jobs.insert(1, ("peers", lambda: run_peers(folder, tiny=args.tiny)))
    log, codes = [], []
    for name, job in jobs:
        if args.only and name not in args.only:
            continue
        started = time.monotonic()
        if started - began > args.budget:
            log.append(f"{name}: left out, {args.budget:g} s are over")
        else:
            codes.append(job())
            log.append(f"{name}: exit code {codes[-1]}, {time.monotonic() - started:.1f} s")
        print(log[-1], file=sys.stderr, flush=True)
    (folder / "log.txt").write_text("\n".join(log) + "\n")
    with tarfile.open(args.out / "bench.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname="bench")
    print(
        f"{(args.out / 'bench.tar.gz').stat().st_size / 1e6:.1f} MB in {time.monotonic() - began:.0f} s",
        file=sys.stderr,
    )
    return max(codes, default=1)


if __name__ == "__main__":
    sys.exit(main())
