"""Where blocks were allocated: what the frames of a stack say of its source line, its module and the phase of a step.

All answers are per stack; the last entry of each array is that of a block without one, so that -1 finds it.
"""

from __future__ import annotations

import os.path
import re
from functools import cached_property

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, UNKNOWN
from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.snapshot import Snapshot

OTHER = "other"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER, UNKNOWN)
NO_LINE, NO_MODULE = "(no source line)", "(outside modules)"
NO_PYTHON = "(backward, no source line)"

# Frames of torch and of Python's own library say how, not where in the program.
_OF_LIBRARY = re.compile(
    r"(?:^|/)torch/|(?:^|/)foretrace/capture/|site-packages|dist-packages|/lib/python\d|^<|^(?:contextlib|threading|functools)\.py$"
)
_OF_TORCH = re.compile(r"(?:^|/)torch/|/lib/python\d[^/]*/[^/]+\.py$|^<")
_OPTIM = re.compile(r"(?:^|/)optim(?:izers?)?/|(?:^|/)optimizers?\.py$")
_STEPS = ("step", "_step", "_init_group")  # of an optimizer in the program's own files
_NO_STATE = re.compile(r"(?:^|/)(?:lr_scheduler|swa_utils)\.py$")
_CHECKPOINT = re.compile(r"(?:^|/)torch/utils/checkpoint\.py$")
_RECOMPUTES = ("unpack_hook", "recompute_fn", "recompute", "backward")
_RUNS_BACKWARD = ("backward", "_make_grads", "_engine_run_backward")
_NATIVE_BACKWARD = re.compile(
    r"torch::autograd::(?:Engine|AccumulateGrad|generated::\w*Backward)|Backward\d*::apply"
)
_CALLS_FORWARD = ("forward", "_call_impl", "_wrapped_call_impl")
# Makes one token after the other: what it keeps for the next is freed when it returns.
_GENERATES = re.compile(r"(?:^|_)(?:generat(?:e|ion)|decod(?:e|ing)|sample|beam_search|greedy_search)(?:_|$)")
_FUNCTIONAL = re.compile(r"(?:^|/)torch/nn/functional\.py$")
_MODULES = re.compile(r"(?:^|/)torch/nn/modules/")
_PARAMETER_CODE = re.compile(r"(?:^|/)torch/nn/parameter\.py$")
_PLACES_PARAMETERS = (
    "_apply",
    "load_state_dict",
    "_load_from_state_dict",
    "reset_parameters",
    "from_pretrained",
)
_GENERATED = re.compile(r"(?:^|/)torchinductor_|(?:^|/)torch_compile_debug/")  # code that the compiler wrote
_NATIVE_FILE = re.compile(r"^(?:\?\?)?$|\.(?:c|cc|cpp|cu|cuh|h|hpp)$")
_SITE = re.compile(r".*(?:site|dist)-packages/")


class Places:
    """Looks up what the stacks of a snapshot say."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._frames = snapshot.frames
        self._stacks = snapshot.stacks.sort("stack", "position")
        used = (table["stack"].max() for table in (self._stacks, snapshot.events, snapshot.blocks))
        self.count = max((int(number) for number in used if isinstance(number, int)), default=-1) + 1
        self.known = self._stacks.height > 0
        self._files: list[str] = [str(file or "") for file in self._frames["file"]]
        self._functions: list[str] = [str(name or "") for name in self._frames["function"]]

    @cached_property
    def lines(self) -> pl.Series:
        """The innermost frame of the program's own code in words, as "train.py:12 step"."""
        torch = _matching(_OF_TORCH, self._files)
        chosen = np.full(self.count + 1, -1)
        for kept in (self._own, self._python & ~torch, self._python, np.ones(len(torch), bool)):
            chosen = np.where(chosen < 0, self._innermost(kept), chosen)
        words = [*self.words, NO_PYTHON if self.known else NO_LINE]
        return pl.Series("line", words, dtype=pl.String).gather(np.where(chosen < 0, len(words) - 1, chosen))

    @cached_property
    def words(self) -> list[str]:
        """Each frame as "file:line function", the files of the program from the folder that they share."""
        own = (file for file, mine in zip(self._files, self._own, strict=True) if mine)
        absolute = {os.path.dirname(file) for file in own if os.path.isabs(file)}
        shared = os.path.commonpath(absolute).rstrip("/") + "/" if absolute else ""
        lines = self._frames["line"].fill_null(0).to_list()
        return [
            f"{_short(file, shared)}:{line} {name}"
            for file, line, name in zip(self._files, lines, self._functions, strict=True)
        ]

    @cached_property
    def _python(self) -> Array:
        return np.array([file.endswith(".py") for file in self._files], bool)

    @cached_property
    def _own(self) -> Array:
        own: Array = self._python & ~_matching(_OF_LIBRARY, self._files) & ~_matching(_GENERATED, self._files)
        return own

    @cached_property
    def of_program(self) -> Array:
        """Whether a module's own code is among the frames: so does the thread that runs the program begin, and no other."""
        return self._among("<module>")

    @cached_property
    def phases(self) -> pl.Series:
        """The phase of the step: what the innermost frame that tells says.

        Autograd's threads run no Python: where stacks were recorded, an allocation without one is the backward pass's.
        """
        marks = np.array(
            [self._mark(*frame) for frame in zip(self._files, self._functions, strict=True)], int
        )
        inner = self._innermost(marks >= 0)
        phase = np.where(inner >= 0, np.append(marks, -1)[inner], PHASES.index(OTHER))
        again = self._innermost(marks == PHASES.index(RECOMPUTE)) >= 0
        phase = np.where(again & (phase == PHASES.index(FORWARD)), PHASES.index(RECOMPUTE), phase)
        phase[-1] = PHASES.index(BACKWARD if self.known else UNKNOWN)
        return pl.Series("phase", PHASES, dtype=pl.String).gather(phase)

    @cached_property
    def parameters(self) -> Array:
        """Whether a module's parameters or buffers are made, moved or loaded there."""
        makes = np.array(
            [
                name in _PLACES_PARAMETERS
                or bool(_PARAMETER_CODE.search(file))
                or (name == "__init__" and bool(_MODULES.search(file)))
                for file, name in zip(self._files, self._functions, strict=True)
            ],
            bool,
        )
        found: Array = self._innermost(makes) >= 0
        return found

    @cached_property
    def clears_gradients(self) -> Array:
        """Whether zero_grad is among the frames."""
        return self._among("zero_grad")

    @cached_property
    def flushes(self) -> Array:
        """Whether the program empties the allocator's cache there."""
        return self._among("empty_cache")

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The frames named `forward`, from the outermost in: stack, depth, frame."""
        named = np.flatnonzero(np.array([name == "forward" for name in self._functions], bool))
        kept = self._stacks.filter(pl.col("frame").is_in(pl.Series(named).implode()))
        kept = kept.sort("stack", "position", descending=(False, True))
        return kept.select("stack", pl.int_range(pl.len()).over("stack").alias("depth"), "frame")

    @cached_property
    def modules(self) -> pl.Series:
        """The forwards on the stack, outermost first: the line that calls the next, and the file of the last."""
        words = pl.Series(self.words, dtype=pl.String)
        words = words.str.strip_prefix("torch/nn/modules/").str.replace(r"\.py:(\d+) forward$", ":$1")
        named = self.calls.with_columns(place=words.gather(self.calls["frame"]))
        last = pl.col("place").str.replace(r":\d+$", "")
        path = named.group_by("stack").agg(
            pl.col("place").sort_by("depth").slice(0, pl.len() - 1),
            last.sort_by("depth").last().alias("last"),
        )
        text = path.select("stack", module=pl.concat_list("place", "last").list.join(" › "))
        every = pl.DataFrame({"stack": pl.Series(range(self.count + 1), dtype=pl.Int32)})
        joined = every.join(text, on="stack", how="left", maintain_order="left")
        return joined["module"].fill_null(NO_MODULE)

    def stack(self, number: int) -> list[str]:
        """One stack in words, innermost first."""
        return [self.words[frame] for frame in self._stacks.filter(pl.col("stack") == number)["frame"]]

    def loops_over_steps(self, stacks: Array) -> bool:
        """Whether a loop over allocations with these stacks runs outside modules and generation, as a loop over steps does.

        The loop is in a frame that all of them share, or in the function that they reach from there by several lines.
        """
        of_python = pl.Series([not _NATIVE_FILE.search(file) for file in self._files], dtype=pl.Boolean)
        used = self._stacks.filter(
            pl.col("stack").is_in(pl.Series(stacks).implode()) & of_python.gather(self._stacks["frame"])
        )
        outer_first = used.sort("stack", "position", descending=(False, True))
        paths = outer_first.group_by("stack").agg("frame")["frame"].to_list()
        for level in zip(*paths, strict=False):
            functions = {(self._files[frame], self._functions[frame]) for frame in level}
            if len(functions) > 1:
                return True
            ((_, function),) = functions
            if function in _CALLS_FORWARD or _GENERATES.search(function):
                return False
            if len(set(level)) > 1:
                return True
        return True

    def _among(self, function: str) -> Array:
        """For each stack whether a function of that name is among its frames."""
        found: Array = self._innermost(np.array([name == function for name in self._functions], bool)) >= 0
        return found

    def _innermost(self, wanted: Array) -> Array:
        """For each stack the innermost wanted frame, or -1."""
        found = np.full(self.count + 1, -1)
        if not self.count:
            return found
        stack, frame = self._stacks["stack"].to_numpy(), self._stacks["frame"].to_numpy()
        kept = wanted[frame]
        # The first of each stack is written last.
        found[stack[kept][::-1]] = frame[kept][::-1]
        return found

    def _mark(self, file: str, function: str) -> int:
        """The phase that a frame tells, or -1."""
        if _CHECKPOINT.search(file) and function in _RECOMPUTES:
            return PHASES.index(RECOMPUTE)
        if (
            _OPTIM.search(file)
            and not _NO_STATE.search(file)
            and (function in _STEPS or _OF_LIBRARY.search(file))
        ):
            return PHASES.index(OPTIMIZER)
        if function in _RUNS_BACKWARD or _NATIVE_BACKWARD.search(function):
            return PHASES.index(BACKWARD)
        if function in _CALLS_FORWARD or _FUNCTIONAL.search(file):
            return PHASES.index(FORWARD)
        return -1


def of_library(file: str) -> bool:
    """Whether a file is torch's or Python's own, or of an installed package."""
    return bool(_OF_LIBRARY.search(file))


def _matching(pattern: re.Pattern[str], texts: list[str]) -> Array:
    return np.array([bool(pattern.search(text)) for text in texts], bool)


def _short(file: str, shared: str) -> str:
    if _SITE.match(file):
        return _SITE.sub("", file, count=1)
    return file.removeprefix(shared) if shared and file.startswith(shared) else file
