"""`foretrace try` on the six public programs, beside what their changes brought by hand: run on a machine with a GPU.

    python benchmarks/real/try_six.py --out DIR [--only NAME,...] [--budget 1200]

Needs ../shared or shared/ (recordings, truth.json, three of the programs), the wheel of timm in benchmarks/real/wheels, and in
benchmarks/real/wheels/sources the others as they are published: nanoGPT/ (train.py, model.py, configurator.py),
imagenet/main.py and word_language_model/ (main.py, data.py, model.py) of pytorch/examples. What is missing is said, and the rest
is tried.

First every variant that compiles runs a few steps, all at once, to fill the compiler's caches. Then each program has the machine
for itself: `try` runs it as it is and with each change that truth.json knows and that needs no edit, each change in two processes or
more. With --by-hand the same changes are also timed as truth.json's were (../shared/real/time_steps.py), in the same minutes: as it is
and with each change before `try`, and in the other order after it. A program that follows its host gains more or less from one machine,
and from one process, to the next. DIR gets NAME.json of each, six.json and six.md: truth.json's speed-up and that of today beside the
measured one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE)]

from truth import speedup_range  # noqa: E402
from turns import Place  # noqa: E402

from foretrace.capture.trial_options import TrialOptions  # noqa: E402
from foretrace.trial import candidates, process  # noqa: E402

SHARED = next((path for path in (ROOT / "shared", ROOT.parent / "shared") if path.is_dir()), ROOT / "shared")
WHEELS = HERE / "wheels"
SOURCES = WHEELS / "sources"
PROGRAMS = SHARED / "real" / "programs"
NEAR = 0.05  # of the range in truth.json: so near a measured speed-up should be
TOKENS, TOKEN_BYTES = 4_000_000, 2  # that nanoGPT draws its batches from
WORDS = 33_277  # different ones in WikiText-2, beside the end of a line
BLOCKS_BY_HAND = 12  # of 0.4 s: steps of wav2vec differ by the layers that are dropped
FILL_S = 150.0  # the longest that filling the caches may take


@dataclass(frozen=True)
class Six:
    """One program: where it lies, how it is started, and truth.json's changes as `foretrace try` names them."""

    folder: Path
    words: tuple[str, ...]
    changes: Mapping[str, str]  # of truth.json; empty for those that need an edit
    also: tuple[str, ...] = ()  # tried although truth.json does not know them
    by_hand: Mapping[str, tuple[str, str]] | None = (
        None  # a word, and what stands there with the change; None: FIX=CHANGE makes it
    )

    @property
    def tried(self) -> list[str]:
        """The names for --only."""
        return [*dict.fromkeys([*filter(None, self.changes.values()), *self.also])]


SIX = {
    "nanogpt_124m": Six(
        SOURCES / "nanoGPT",
        ("train.py", "--dataset=random", "--gradient_accumulation_steps=1", "--compile=False", "--eval_interval=100000000",
         "--eval_iters=1", "--log_interval=10"),
        {"compile": "compile"},
        by_hand={"compile": ("--compile=False", "--compile=True")},
    ),
    # truth.json's "compile" is Trainer(torch_compile=True), which also turns TF32 on.
    "hf_trainer_gpt2": Six(PROGRAMS, ("hf_trainer_gpt2.py",),
                           {"sdpa": "", "bf16": "bf16-autocast", "compile": "tf32+compile", "tf32": "tf32"}),
    "word_lm": Six(
        SOURCES / "word_language_model",
        ("main.py", "--accel", "--model", "LSTM", "--emsize", "650", "--nhid", "650", "--dropout", "0.5", "--epochs", "100"),
        {"foreach": "", "noitem": ""}, also=("fused-optimizer",), by_hand={},
    ),
    "timm_convnext": Six(PROGRAMS, ("timm_convnext.py",), {"channels_last": "channels-last", "compile": "compile"}),
    "wav2vec": Six(PROGRAMS, ("wav2vec.py",), {"tf32": "tf32", "bf16": "bf16-autocast", "compile": "compile"}),
    "imagenet": Six(SOURCES / "imagenet", ("main.py", "--dummy", "-a", "resnet50", "-b", "128", "-j", "4", "--gpu", "0"),
                    {"workers": "workers=15", "bf16": "bf16-autocast"}, by_hand={"workers": ("4", "15")}),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries all that is there, and writes the table."""
    options = _options(arguments)
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="try-six-"))
    place = Place(scratch, scratch / "caches")
    place.unpack(WHEELS)
    for name, value in _environment(place).items():
        os.environ[name] = value
    names = [name for name in SIX if not options.only or name in options.only]
    there = [name for name in names if (SIX[name].folder / SIX[name].words[0]).is_file()]
    for name in sorted(set(names) - set(there)):
        print(f"{name}: {SIX[name].folder / SIX[name].words[0]} is not there", flush=True)
    if "nanogpt_124m" in there:
        _make_tokens(SIX["nanogpt_124m"].folder / "data" / "random")
    if "word_lm" in there:
        _make_text(SIX["word_lm"].folder / "data" / "wikitext-2")
    _fill(there, scratch)
    print(f"[{time.monotonic() - began:6.1f} s] caches are filled", flush=True)
    documents: dict[str, Any] = {}
    hand: dict[str, dict[str, list[float]]] = {}
    by_hand: dict[str, dict[str, list[float]]] = {}  # milliseconds of each process
    for place_, name in enumerate(there):
        now = time.monotonic()
        share_s = (began + options.budget - now) / (len(there) - place_)
        times = by_hand.setdefault(name, {})
        if name in options.by_hand:
            _time_by_hand(name, scratch, times)
        documents[name] = _try(name, scratch, options.out, share_s - 2 * (time.monotonic() - now))
        if name in options.by_hand:
            _time_by_hand(name, scratch, times)
            hand[name] = _speedups(times)
            (options.out / "by_hand_ms.json").write_text(json.dumps(by_hand, indent=1) + "\n")
        rows = rows_of(documents, hand)
        (options.out / "six.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "six.md").write_text(to_markdown(rows))
        print(f"[{time.monotonic() - began:6.1f} s] {name} is done", flush=True)
    print((options.out / "six.md").read_text() if documents else "nothing was tried", flush=True)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the table goes")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,...",
        help="these programs alone",
    )
    says = "for all: a program gets its share of what is left (default: 1200)"
    parser.add_argument("--budget", type=float, default=1200, metavar="S", help=says)
    parser.add_argument(
        "--by-hand",
        nargs="?",
        type=lambda text: text.split(","),
        const=list(SIX),
        default=[],
        metavar="NAME,...",
        help="time the changes by hand too, of these programs or of all",
    )
    return parser.parse_args(arguments)


def _time_by_hand(name: str, scratch: Path, times: dict[str, list[float]]) -> None:
    """Adds a step time, in milliseconds, of the program as it is and with each change that FIX or a word of the command makes."""
    six = SIX[name]
    changes = [
        change for change in (six.changes if six.by_hand is None else six.by_hand) if six.changes[change]
    ]
    variants = ["", *changes] if changes else []
    for change in reversed(variants) if times else variants:
        old, new = (six.by_hand or {}).get(change, ("", ""))
        out = scratch / f"hand-{name}-{change}-{len(times.get(change, []))}.json"
        made = subprocess.run(
            [sys.executable, str(SHARED / "real" / "time_steps.py"), str(out), "optimizer",
             *(new if old and word == old else word for word in six.words)],
            cwd=six.folder, env={**os.environ, "FIX": change, "BLOCKS": str(BLOCKS_BY_HAND)}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if not made.returncode and out.is_file():
            times.setdefault(change, []).append(json.loads(out.read_text())["step_ms"])
        print(f"{name} {change or 'base'} by hand: {times.get(change, ['failed'])[-1]} ms", flush=True)


def _speedups(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Of each change, from the lowest to the highest."""
    if "" not in times:
        return {}
    return {change: speedup_range(times[""], made) for change, made in times.items() if change}


def _environment(place: Place) -> dict[str, str]:
    paths = [str(place.packages), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore", "TORCHINDUCTOR_CACHE_DIR": str(place.caches / "inductor"),
        "TRITON_CACHE_DIR": str(place.caches / "triton"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }  # fmt: skip


def _make_tokens(folder: Path) -> None:
    """Random tokens, in the form that nanoGPT reads."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    tokens = (
        b"".join(source.randrange(50_257).to_bytes(TOKEN_BYTES, "little") for _ in range(TOKENS // 8)) * 8
    )
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(tokens)


def _make_text(folder: Path) -> None:
    """Where WikiText-2 is not carried along: random text with as many different words as it has."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    for name, lines in (("train.txt", 100_000), ("valid.txt", 10_000), ("test.txt", 10_000)):
        if (folder / name).exists():
            continue
        words = [f"w{number}" for number in range(WORDS)] if name == "train.txt" else []
        words += [f"w{source.randrange(WORDS)}" for _ in range(20 * lines - len(words))]
        rows = (" ".join(words[start : start + 20]) for start in range(0, len(words), 20))
        (folder / name).write_text("\n".join(rows) + "\n")


def _fill(names: Sequence[str], scratch: Path) -> None:
    """A few steps of every variant that compiles, all at once."""
    jobs = [(name, change) for name in names for change in SIX[name].tried if "compile" in change]

    def fill(job: tuple[str, str]) -> str:
        name, change = job
        (proposal,) = candidates.propose(None, None, numerics=True, also=(change,))
        label = scratch / f"fill-{name}-{change}"
        options = TrialOptions(
            f"{label}.json", proposal.changes, settle_s=0.01, settle_steps=2, block_steps=1, blocks=1, scratch=str(scratch)
        )  # fmt: skip
        made = process.run(
            [sys.executable, *SIX[name].words], options, log=Path(f"{label}.log"), folder=SIX[name].folder, environment={},
            limits=process.Limits(FILL_S),
        )  # fmt: skip
        return f"  {name} {change}: {made['status']} in {made['took_s']:.1f} s {made['error']}"

    with ThreadPoolExecutor(max(len(jobs), 1)) as pool:
        for said in pool.map(fill, jobs):
            print(said, flush=True)


def _try(name: str, scratch: Path, out: Path, budget_s: float) -> dict[str, Any] | None:
    six = SIX[name]
    with tarfile.open(SHARED / "corpus" / "real" / f"{name}.tar.xz") as packed:
        packed.extractall(scratch, filter="data")
    command = [
        sys.executable, "-m", "foretrace", "try", "--from", str(scratch / name), "-o", str(scratch / f"try-{name}"),
        "--rounds", "2", "--base-every", "2", "--settle", "1.5", "--no-together", "--timeout", "120", "--format", "json",
        "--budget", f"{max(budget_s, 20):.0f}", "--ledger", str(out / "ledger.jsonl"),
    ]  # fmt: skip
    for change in six.tried:
        command += ["--only", change]
    done = subprocess.run(
        [*command, "--", sys.executable, *six.words],
        cwd=six.folder,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{name}: exit code {done.returncode}", flush=True)
        return None
    (out / f"{name}.json").write_text(done.stdout)
    shutil.copy(scratch / f"try-{name}" / "try.json", out / f"{name}.processes.json")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def rows_of(
    documents: Mapping[str, Any], hand: Mapping[str, Mapping[str, Sequence[float]]]
) -> list[dict[str, Any]]:
    """truth.json's changes beside what was measured, by hand today and by `try`."""
    truth = json.loads((SHARED / "corpus" / "real" / "truth.json").read_text())
    rows = []
    for name, document in documents.items():
        if document is None:
            rows.append({"program": name, "change": "", "status": "failed"})
            continue
        made = {change["change"]: change for change in document["changes"]}
        for known, entry in truth[name]["changes"].items():
            change = SIX[name].changes[known]
            row = _row(name, known, entry["speedup_range"], made.get(_plain(change)), document["base"])
            rows.append(beside_today(row, hand.get(name, {}).get(known)))
        rows += [
            _row(name, other, None, made.get(_plain(other)), document["base"]) for other in SIX[name].also
        ]
    return rows


def _plain(change: str) -> str:
    return "+".join(part.partition("=")[0] for part in change.split("+"))


def _row(
    program: str,
    change: str,
    truth: Sequence[float] | None,
    made: Mapping[str, Any] | None,
    base: Mapping[str, Any],
) -> dict[str, Any]:
    row: dict[str, Any] = {"program": program, "change": change, "truth": truth, "base_ms": base["step_ms"]}
    row["noise_pct"] = base["noise_pct"]
    if made is None:
        return {**row, "status": "needs an edit"}
    row |= {
        name: made[name]
        for name in ("status", "verdict", "error", "step_ms", "speedup", "predicted", "results")
    }
    if truth and made["speedup"]:
        row["near"] = is_near(made["speedup"]["point"], truth)
    return row


def is_near(point: float, known: Sequence[float]) -> bool:
    """Whether a speed-up is within 5 % of a range."""
    return known[0] * (1 - NEAR) <= point <= known[1] * (1 + NEAR)


def beside_today(row: dict[str, Any], today: Sequence[float] | None) -> dict[str, Any]:
    """The row with what the change brought by hand in the same minute."""
    row = {**row, "by_hand_today": today}
    if today and row.get("speedup"):
        row["near_today"] = is_near(row["speedup"]["point"], today)
    return row


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for docs."""
    lines = [
        "| program | change | truth.json | by hand today | `foretrace try` | predicted | verdict | results |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        truth, today = (
            f"× {row[key][0]:.2f} to {row[key][1]:.2f}" if row.get(key) else "–"
            for key in ("truth", "by_hand_today")
        )
        speedup, predicted = row.get("speedup"), row.get("predicted")
        measured = row["status"] + (f": {row['error']}" if row.get("error") else "")
        if speedup:
            far = {"near": "truth.json", "near_today": "today's"}
            off = " and ".join(known for key, known in far.items() if not row.get(key, True))
            measured = f"× {speedup['point']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"
            measured += f", more than 5 % off {off}" if off else ""
        expected = (
            f"× {predicted['speedup']['low']:.2f} to {predicted['speedup']['high']:.2f}" if predicted else "–"
        )
        kept = row["results"]["says"] if row.get("results") else "–"
        lines.append(
            f"| {row['program']} | {row['change']} | {truth} | {today} | {measured} | {expected} | {row.get('verdict') or '–'} | {kept} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
