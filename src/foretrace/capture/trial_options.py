"""The TrialOptions: which changes to make in a program that `foretrace try` started, and what to measure of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from foretrace.errors import UsageError

VARIABLE = "FORETRACE_TRIAL"  # the environment variable that carries the options into the program


@dataclass(frozen=True)
class TrialOptions:
    """One variant of a program."""

    output: str  # the file that gets what was measured
    changes: Mapping[str, Any] = field(default_factory=dict)  # the name of each change, and its value
    seed: int = 0  # of torch, NumPy and random, set when torch is imported
    values: int = 5  # losses, gradient norms and outputs that are written down, from the first on
    settle_s: float = 1.0  # steps that belong to the start: at least so long ...
    settle_steps: int = 4  # ... and so many
    let_by: int | None = None  # ... or so many, however long: the same steps are timed in every variant
    block_s: float = 0.2  # a block of steps lasts so long ...
    block_steps: int | None = None  # ... or has so many
    blocks: int = 10  # that are timed
    scratch: str = ""  # what the program saves with torch.save goes there
    gpu_memory_share: float | None = None  # of the device, that the program may use
    step_function: str | None = None  # module:qualname

    def to_json(self) -> str:
        """The text for the environment variable."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> TrialOptions:
        """The options in such a text; names of another version are left out."""
        try:
            values: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{VARIABLE} is not JSON: {error}") from error
        known = {known.name for known in fields(TrialOptions)}
        return TrialOptions(**{name: value for name, value in values.items() if name in known})
