"""The table of runtime calls: a CUDA name and its HIP twin do the same."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from foretrace.runtime_names import Effect, calls_that, does, effect

SOURCE = Path(__file__).parents[3] / "src" / "foretrace"
# As hipify-perl has them, apart from those that only differ in their prefix.
TWINS = {
    "cudaMallocHost": "hipHostMalloc", "cudaFreeHost": "hipHostFree", "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuMemAlloc_v2": "hipMalloc", "cuMemFree_v2": "hipFree", "cuMemcpyDtoH_v2": "hipMemcpyDtoH",
    "cuMemcpyDtoHAsync_v2": "hipMemcpyDtoHAsync", "cuMemHostRegister": "hipHostRegister",
}  # fmt: skip
SAME_STEM = (
    "DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "Memcpy", "MemcpyAsync", "Memcpy2D", "MemcpyToSymbol",
    "Memset", "MemsetAsync", "LaunchKernel", "LaunchKernelExC", "LaunchCooperativeKernel", "GraphLaunch", "EventRecord",
    "EventRecordWithFlags", "StreamWaitEvent", "Malloc", "MallocAsync", "MallocManaged", "Free", "FreeAsync", "HostAlloc",
    "HostRegister", "HostUnregister", "MemPoolTrimTo", "StreamBeginCapture", "StreamEndCapture", "GetLastError",
)  # fmt: skip


@pytest.mark.parametrize(
    ("cuda", "hip"), [*TWINS.items(), *((f"cuda{stem}", f"hip{stem}") for stem in SAME_STEM)]
)
def test_a_name_and_its_twin_do_the_same(cuda: str, hip: str) -> None:
    assert effect(cuda) == effect(hip)


def test_what_blocks_the_host() -> None:
    blocks = (
        "hipMemcpyWithStream", "hipMemcpy", "cudaMemcpy", "cudaMemcpy_v3020", "hipMemcpyDtoH", "cuMemcpyHtoD_v2",
        "cudaFree", "hipFree", "hipHostFree",
    )  # fmt: skip
    returns = (
        "hipMemcpyAsync", "cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cudaMemcpyPeerAsync", "hipFreeAsync",
        "cuMemFreeAsync", "hipMalloc", "urEnqueueUSMMemcpy", "hipLaunchKernel",
    )  # fmt: skip
    assert [name for name in (*blocks, *returns) if does(name, Effect.BLOCKS)] == list(blocks)
    waits = ("hipDeviceSynchronize", "cuCtxSynchronize", "hipStreamSynchronize_spt", "urQueueFinish")
    assert all(does(name, Effect.SYNC) for name in waits)
    assert [does(name, Effect.WHOLE_DEVICE) for name in waits] == [True, True, False, False]


def test_names_of_a_column_are_looked_up() -> None:
    names = pl.Series(["hipMemcpyWithStream", None, "aten::mm", "cudaGraphLaunch"], dtype=pl.Categorical)
    assert calls_that(names, Effect.COPY, Effect.GRAPH).tolist() == [True, False, False, True]
    assert calls_that(names, Effect.COPY | Effect.BLOCKS).tolist() == [True, False, False, False]
    assert calls_that(pl.Series([], dtype=pl.String), Effect.SYNC).tolist() == []


def test_no_other_file_judges_calls_by_their_names() -> None:
    """A pattern over a vendor's prefix elsewhere is a second table; explanations of names are no judgement."""
    pattern = re.compile(r"\((?:\?:)?(?:cuda|hip|cu)\|(?:cuda|hip|cu)")
    elsewhere = {
        path.name
        for path in SOURCE.rglob("*.py")
        if path.name not in ("runtime_names.py", "known_names.py")
        for line in path.read_text().splitlines()
        # Where tensors lie, and queries that show a cold start, are other questions.
        if pattern.search(line) and "privateuseone" not in line and "FuncGetAttributes" not in line
    }
    assert elsewhere == set()
