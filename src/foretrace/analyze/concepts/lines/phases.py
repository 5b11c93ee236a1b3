"""Phases: what a program does at a moment, by the outermost frame that says so, else by the boundaries of its steps."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.line_samples import LineSamples

IMPORT, SET_UP, LOADING, STEP, END = "import", "set-up", "loading", "step", "end"
LOGGING, SAVING, COMPILING, RECORDING = "logging", "saving", "compiling", "recording"
PHASES = (IMPORT, SET_UP, LOADING, STEP, LOGGING, SAVING, COMPILING, END, RECORDING)


class _Mark(NamedTuple):
    phase: str
    file: str
    functions: str = ""


_MARKS = tuple(
    (mark.phase, re.compile(mark.file), re.compile(mark.functions))
    for mark in (
        _Mark(RECORDING, r"/foretrace/capture/recorder\.py$"),
        _Mark(IMPORT, r"^<frozen importlib\._bootstrap>$", r"_find_and_load"),
        _Mark(SAVING, r"/torch/serialization\.py$", r"save$"),
        _Mark(SAVING, r"/transformers/modeling_utils\.py$", r".*save_pretrained$"),
        _Mark(SAVING, r"/safetensors/torch\.py$", r"save_file$"),
        _Mark(SAVING, r"/checkpoint_connector\.py$", r".*(save|dump)_checkpoint$"),
        _Mark(SAVING, r"/torch/distributed/checkpoint/state_dict_saver\.py$"),
        _Mark(LOADING, r"/torch/utils/data/dataloader\.py$", r"(.*\.)?(__next__|__iter__)$"),
        _Mark(LOGGING, r"/logging/__init__\.py$", r"Logger\.(_log|handle)$"),
        _Mark(LOGGING, r"/(tensorboard|tensorboardX|wandb|mlflow)/"),
        _Mark(LOGGING, r"/torch/utils/tensorboard/"),
        _Mark(LOGGING, r"logger_connector"),
        _Mark(LOGGING, r"/json/__init__\.py$", r"dumps?$"),
        # Its wrappers are around every call of a compiled function: these two are there while it compiles.
        _Mark(COMPILING, r"/torch/_dynamo/convert_frame\.py$"),
        _Mark(COMPILING, r"/torch/_inductor/(compile_fx|async_compile)\.py$"),
        _Mark(COMPILING, r"/triton/compiler/compiler\.py$", r"compile$"),
    )
)


def _marked(file: str, function: str) -> str | None:
    for phase, files, functions in _MARKS:
        if files.search(file) and functions.match(function):
            return phase
    return None


def of_stacks(lines: LineSamples) -> pl.DataFrame:
    """For each stack `marked`, the phase that its outermost telling frame names, and `user_id`, its innermost place of the user."""
    places = lines.places.select("file", "function", "user")
    distinct = places.select("file", "function").unique()
    phases = {row: _marked(*row) for row in distinct.iter_rows()}
    of_place = [phases[file, function] for file, function, _ in places.iter_rows()]
    users = places["user"].to_list()
    marked: list[str | None] = []
    user_ids: list[int | None] = []
    for _, parent, place in lines.stacks.iter_rows():
        outer = marked[parent] if parent is not None else None
        # What Foretrace does at a step's end is its own, whatever lies around it.
        marked.append(RECORDING if of_place[place] == RECORDING else outer or of_place[place])
        user_ids.append(place if users[place] else user_ids[parent] if parent is not None else None)
    return pl.DataFrame(
        {"stack_id": lines.stacks["id"], "marked": marked, "user_id": user_ids},
        schema={"stack_id": pl.UInt32, "marked": pl.String, "user_id": pl.UInt32},
    )


def of_ticks(lines: LineSamples, t_ns: Array, marked: pl.Series) -> pl.Series:
    """The phase at each of these moments, whose stacks are marked so."""
    first, last = lines.first_ns, lines.last_ns
    before = t_ns <= first if first is not None else np.ones(len(t_ns), bool)
    after = t_ns > last if last is not None and first is not None else np.zeros(len(t_ns), bool)
    by_time = np.where(before, SET_UP, np.where(after, END, STEP))
    profiled = np.zeros(len(t_ns), bool)
    for begin, end in lines.profiled_ns:
        profiled |= (t_ns > begin) & (t_ns <= end)
    phases = pl.DataFrame({"marked": marked, "by_time": by_time, "before": before, "profiled": profiled})
    # Modules that are loaded within a step are part of it.
    name = (
        pl.when((pl.col("marked") == IMPORT) & ~pl.col("before"))
        .then(pl.col("by_time"))
        .otherwise(pl.coalesce("marked", "by_time"))
    )
    return phases.select(pl.when("profiled").then(pl.lit(RECORDING)).otherwise(name)).to_series()
