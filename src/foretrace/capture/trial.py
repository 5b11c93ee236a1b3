"""The Trial: one variant of a program that `foretrace try` started, in its process.

Patches are installed when torch has been imported. The results of the first steps are read, steps are let by until they are
alike, then a fixed number is timed in blocks. What was measured is written to a file, and the process ends.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from foretrace.capture import environment, known_secrets
from foretrace.capture.loader_patches import (
    PersistentWorkers,
    PinMemory,
    Prefetch,
    Workers,
    batches_ahead,
)
from foretrace.capture.module_patches import Bf16Autocast, ChannelsLast, Compile, Roots
from foretrace.capture.optimizer_patches import ForeachOptimizer, FusedOptimizer
from foretrace.capture.passes import peak_host_bytes, synchronize
from foretrace.capture.patches import (
    AnomalyOff,
    CudnnBenchmark,
    DeterministicOff,
    ExpandableSegments,
    Patch,
    Proof,
    Tf32,
    Threads,
)
from foretrace.capture.results_watch import ResultsWatch
from foretrace.capture.side_effects import SideEffects
from foretrace.capture.steps import StepFinder
from foretrace.capture.trial_options import VARIABLE, TrialOptions
from foretrace.capture.trial_timer import TrialTimer
from foretrace.whole_files import replace_text

PATCHES: dict[str, type[Patch]] = {
    "cudnn-benchmark": CudnnBenchmark,
    "workers": Workers,
    "pin-memory": PinMemory,
    "prefetch": Prefetch,
    "persistent-workers": PersistentWorkers,
    "fused-optimizer": FusedOptimizer,
    "foreach-optimizer": ForeachOptimizer,
    "expandable-segments": ExpandableSegments,
    "anomaly-off": AnomalyOff,
    "deterministic-off": DeterministicOff,
    "threads": Threads,
    "tf32": Tf32,
    "channels-last": ChannelsLast,
    "compile": Compile,
    "compile-reduce-overhead": Compile,
    "bf16-autocast": Bf16Autocast,
}  # in the order in which they are installed: a module is compiled before a wrapper goes around it
_NOT_MADE = 70  # the exit code of a program that could not be changed: a fault of Foretrace's own
_LOOKED_AT = 3  # steps in which calls of modules are looked at
_trial: Trial | None = None


def arm() -> None:
    """Called once torch has been imported in a program that `foretrace try` started."""
    global _trial
    text = os.environ.get(VARIABLE)
    if _trial is None and text:
        _trial = Trial(TrialOptions.from_json(text))
        try:
            _trial.install()
        except Exception as error:  # a program in which only a part is changed proves nothing
            sys.stderr.write(f"foretrace: the changes could not be made: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(_NOT_MADE)


class Trial:
    """Of one process; the first one of rank 0 that takes a step writes the file."""

    def __init__(self, options: TrialOptions) -> None:
        self.options = options
        self.patches = {
            name: kind(options.changes[name]) for name, kind in PATCHES.items() if name in options.changes
        }
        self.results = ResultsWatch(options.values)
        self.side_effects = SideEffects(options.scratch)
        self.roots = Roots(tuple(self.patches.values()), self.results.call)
        self.finder = StepFinder(self._boundary, self._decided, step_function=options.step_function)
        self.timer = TrialTimer(options, ahead=batches_ahead, synchronize=synchronize)
        self._armed_ns = time.perf_counter_ns()
        self._pid = os.getpid()
        self._steps = 0
        self._own = False  # whether this process is the one that is measured
        self._over = False

    def install(self) -> None:
        """From now on the program is as it would be with the changes."""
        known_secrets.values()  # those that the program removes from its environment stay known
        self._seed()
        for patch in self.patches.values():
            patch.install()
        share = self.options.gpu_memory_share
        if share is not None:
            self._limit_memory(share)
        self.results.install()
        self.side_effects.install()
        self.roots.install()
        self.finder.install()
        atexit.register(self._close)

    def _seed(self) -> None:
        import torch

        torch.manual_seed(self.options.seed)
        random.seed(self.options.seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self.options.seed)

    def _limit_memory(self, share: float) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(share)

    def _decided(self, _: str) -> None:
        self._steps = 0
        self.timer.forget()
        if not self._own and environment.rank_of_process()[0] == 0:
            self._own = self._claim()

    def _claim(self) -> bool:
        """Whether this process is the one to measure: it made the file."""
        try:
            os.close(os.open(f"{self.options.output}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def _boundary(self) -> None:
        if self._over or self._pid != os.getpid():
            return
        self._steps += 1
        if self._steps == _LOOKED_AT:
            self.roots.remove()
        if not self._own or self._steps < _LOOKED_AT:
            return
        try:
            timing = self.timer.timing
            over = self.timer.step()
            if self.timer.timing and not timing:
                self.results.remove()
                self.side_effects.end()
                self.finder.fix()
                _forget_peak()
        except Exception as error:
            self._write(problem=f"{type(error).__name__}: {error}")
            self._leave()
        if over:
            self._write()
            self._leave()

    def _close(self) -> None:
        """The program ended before all was measured; what there is may do."""
        if self._own and not self._over and self._pid == os.getpid():
            self._write(
                problem="" if self.timer.short() else "the program ended before its steps could be timed"
            )

    def _write(self, problem: str = "") -> None:
        self._over = True
        facts = {
            "changes": dict(self.options.changes),
            "problem": problem,
            "step_source": self.finder.source,
            "steps_seen": self._steps,
            "start_s": self.timer.start_s(self.roots.first_call_ns or self._armed_ns),
            **self.timer.to_dict(),
            "proofs": {name: _proof(patch) for name, patch in self.patches.items()},
            "results": self.results.to_dict(),
            "side_effects": self.side_effects.to_dict(),
            "modules": self.roots.names,
            "batches_ahead": batches_ahead(),
            "peak_gpu_bytes": _peak_gpu_bytes(),
            "peak_host_bytes": peak_host_bytes(),
            "device": _device(),
            "torch": sys.modules["torch"].__version__,
        }
        replace_text(Path(self.options.output), json.dumps(known_secrets.masked(facts)))

    def _leave(self) -> None:
        """Ends the process: nothing is saved, evaluated or uploaded by a program that was only tried."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _proof(patch: Patch) -> dict[str, Any]:
    try:
        return patch.proof().__dict__
    except Exception as error:  # torch is built in another way: then nothing is proved
        return Proof(False, f"it cannot be read back: {type(error).__name__}: {error}").__dict__


def _forget_peak() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak_gpu_bytes() -> int | None:
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_initialized() else None


def _device() -> str:
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else "CPU"
