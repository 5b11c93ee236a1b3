"""How what is missing is recorded: sentences about torch.profiler's options, told as the recording's own profiler has them."""

from __future__ import annotations

from foretrace.trace import Trace

# What nsys has in its place; it records neither memory nor stacks of operators.
_NSYS = (
    ("need record_shapes=True", "need `nsys profile --pytorch=autograd-shapes-nvtx`"),
    ("record with record_shapes=True", "record with `nsys profile --pytorch=autograd-shapes-nvtx`"),
    ("record with ProfilerActivity.CUDA", "record with `nsys profile --trace=cuda,nvtx`"),
    ("need with_stack=True", "are not recorded by nsys (torch.profiler does, with_stack=True)"),
    ("record with with_stack=True", "nsys does not; torch.profiler does, with_stack=True"),
    ("need profile_memory=True", "are not recorded by nsys (torch.profiler does, profile_memory=True)"),
    ("record with profile_memory=True", "nsys does not; torch.profiler does, profile_memory=True"),
    ("call profiler.step() at the end of each iteration", 'mark each iteration with torch.cuda.nvtx.range("step")'),
    ("call profiler.step() in the loop", 'torch.cuda.nvtx.range("step") in the loop does'),
    (": step() was not called", ""),
)  # fmt: skip


def as_recorded(trace: Trace, says: str) -> str:
    """The sentence, for the profiler that made this recording."""
    if trace.format == "nsys":
        for torch, nsys in _NSYS:
            says = says.replace(torch, nsys)
    return says
