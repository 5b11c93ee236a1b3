"""Recordings of a small program that is captured into CUDA graphs and replayed, made by hand as Kineto writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.builders import Recording


@dataclass(frozen=True)
class Launch:
    """One operator that launches one kernel, copy or fill, inside modules."""

    op: str
    kernel: str
    rows: int = 8
    modules: tuple[str, ...] = ()
    call: str = "cudaLaunchKernel"


def layer(number: int, rows: int = 8) -> list[Launch]:
    """Two launches of one layer of a model."""
    around = ("Model_0", f"Layer_{number}")
    return [
        Launch("aten::mm", "gemm", rows, (*around, f"Linear_{number}")),
        Launch("aten::add", "plus", rows, around),
    ]


STEP = [*layer(0), *layer(1), Launch("aten::argmax", "reduce", 8, ("Model_0",))]


@dataclass
class Program:
    """A program as it runs: every method goes on in time."""

    recording: Recording = field(default_factory=lambda: Recording(record_shapes=1, with_stack=1))
    at: float = 0.0
    correlation: int = 0
    external: int = 0

    def _next(self, took: float) -> float:
        start, self.at = self.at, self.at + took
        return start

    def _operators(self, launches: list[Launch], *, run: bool, named: bool = False) -> None:
        """The launches in turn, each with its operator and modules; where they `run`, their kernels, too.

        Where `named`, calls tell their kernels, as HIP's do.
        """
        for launch in launches:
            start = self._next(20)
            self.external += 1
            self.correlation += 1
            for depth, module in enumerate(launch.modules):
                self.recording.python(f"nn.Module: {module}", start + depth, start + 19 - depth)
            shapes: dict[str, Any] = {
                "External id": self.external,
                "Input Dims": [[launch.rows, 16], [16, 32]],
                "Input type": ["float", "float"],
            }
            self.recording.op(launch.op, start + 6, start + 12, **shapes)
            linked = {"External id": self.external, "correlation": self.correlation}
            kernel = {"kernel": launch.kernel} if named else {}
            self.recording.runtime(launch.call, start + 7, start + 9, **linked, **kernel)
            if run:
                self.recording.kernel(launch.kernel, start + 10, start + 11, **linked)

    def eager(self, launches: list[Launch]) -> Program:
        """The launches without a graph."""
        self._operators(launches, run=True)
        return self

    def capture(self, launches: list[Launch], *, named: bool = False) -> Program:
        """The launches captured: they start no work."""
        self.recording.runtime("cudaStreamBeginCapture", self._next(2), self.at - 1)
        self._operators(launches, run=False, named=named)
        self.recording.runtime("cudaStreamEndCapture", self._next(2), self.at - 1)
        return self

    def replay(
        self,
        launches: list[Launch],
        *,
        label: str | None = None,
        graph: int | None = None,
        order: list[int] | None = None,
        streams: list[int] | None = None,
    ) -> Program:
        """A launch of the graph; nodes start in `order`, on `streams`, and have ids where the `graph` has one."""
        start = self._next(200)
        self.correlation += 1
        if label is not None:
            self.recording.annotation(label, start, start + 10)
        self.recording.runtime("cudaGraphLaunch", start + 1, start + 5, correlation=self.correlation)
        for place, number in enumerate(order or range(len(launches))):
            ids = {} if graph is None else {"graph id": graph, "graph node id": (graph << 32) + number}
            begin, node = start + 20 + 10 * place, launches[number]
            if node.call == "cudaMemsetAsync":
                self.recording.memset(begin, begin + 8, correlation=self.correlation)
            else:
                stream = streams[place] if streams else 7
                times = (begin, begin + 8)
                self.recording.kernel(node.kernel, *times, correlation=self.correlation, stream=stream, **ids)
        return self
