"""Device work: some of a program's kernels, copies and fills, and what rules ask of such a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.predict.changes import Change
from foretrace.predict.numbers import NO_CALLS, Calls, Tasks

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case

SHOWN_SPANS = 5  # as evidence


class DeviceWork:
    """Rows of `case.tasks`, with the columns that a rule added to them."""

    def __init__(self, case: Case, rows: pl.DataFrame) -> None:
        self.case = case
        self.rows = rows

    def where(self, *predicates: pl.Expr | pl.Series) -> DeviceWork:
        """The part of it that the predicates choose."""
        return DeviceWork(self.case, self.rows.filter(*predicates))

    def __len__(self) -> int:
        return self.rows.height

    @property
    def dur_ns(self) -> int:
        """How long it takes in all recorded steps."""
        return int(self.rows["dur_ns"].sum())

    @property
    def gpu_share(self) -> float:
        """Its part of the time that the GPU works."""
        return self.dur_ns / self.case.device_ns

    @property
    def gpu_pct(self) -> float:
        """The same in per cent."""
        return 100 * self.dur_ns / self.case.device_ns

    @property
    def per_step_count(self) -> float:
        """How many pieces of it a step has."""
        return self.rows.height / self.case.step_count

    @property
    def per_step_ms(self) -> float:
        """How long it takes in a step, in milliseconds."""
        return self.dur_ns / self.case.step_count / 1e6

    @property
    def tasks(self) -> Tasks:
        """Its places in the program."""
        return Tasks(self.rows["task"].to_numpy())

    @property
    def ops(self) -> list[int]:
        """The operators that launched it; what no operator launched is left out."""
        return self.rows["op_id"].drop_nulls().to_list()

    def spans(self) -> list[int]:
        """A few of its spans, as evidence."""
        return self.rows["id"].head(SHOWN_SPANS).to_list()

    def places(self) -> tuple[Place, ...]:
        """The source lines behind it, most frequent first."""
        return self.case.places(self.ops)

    def finding(
        self,
        name: str,
        *,
        says: str,
        why: str,
        fix: Fix,
        change: Change | None = None,
        unless: str = "",
        counted: str = "",
        claims: Calls = NO_CALLS,
    ) -> Finding:
        """A finding about this work, with its evidence and places."""
        evidence = self.evidence(name, counted=counted)
        return Finding(says, why, fix, evidence, self.places(), change, unless, claims)

    def evidence(self, name: str, *, counted: str = "", **more: Any) -> dict[str, Any]:
        """Its time and number per step and its share, under names such as `copies_ns`, with a few spans and `more`."""
        return {
            f"{name}_ns": self.dur_ns // self.case.step_count,
            f"{name}_pct": self.gpu_pct,
            **more,
            f"{counted or name}_per_step_count": self.per_step_count,
            "spans": self.spans(),
        }

    def launched_by(self, *names: str) -> DeviceWork:
        """The part of it that operators of these names launched."""
        launching = self.case.op_names(self.rows["op_id"]).is_in(names).fill_null(value=False)
        return DeviceWork(self.case, self.rows.filter(launching))

    def with_arguments(self) -> DeviceWork:
        """The same work, with what is recorded of its operators' arguments: the columns of `case.arguments`."""
        return DeviceWork(self.case, self.case.with_arguments(self.rows))
