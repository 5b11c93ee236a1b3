"""nn.DataParallel drives several GPUs from one process."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.names.named_spans import any_like
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import KERNELS, headline, needs, rule
from foretrace.diagnose.seen import seen
from foretrace.sourced import Count

LEAST_GPUS = Count(2, "GPUs that work for one nn.DataParallel", "the PyTorch profiler plugin of TensorBoard")
# torch names the forward so itself (torch/nn/parallel/data_parallel.py); with stacks there is the module too.
_FORWARD = r"^DataParallel\.forward$|^nn\.Module: DataParallel_\d+$"


@needs(KERNELS)
@headline("nn.DataParallel drives {gpus_count:.0f} GPUs from one process")
@rule("nn.DataParallel is used with several GPUs", "DataParallel", see="tracks")
def data_parallel(case: Case) -> Iterator[Finding]:
    """nn.DataParallel on two or more GPUs: one process copies the model to each of them in every step.

    Finds recordings with forward passes of nn.DataParallel in which at least {LEAST_GPUS} GPUs work.

    Slow
        model = torch.nn.DataParallel(model)  # one process, a thread for each GPU

    Fast
        torchrun --nproc-per-node 8 train.py
        model = DistributedDataParallel(model, device_ids=[local_rank])  # one process for each GPU

    Why
    In every step nn.DataParallel copies all weights from the first GPU to the others, splits the batch, runs one thread for
    each GPU under Python's one lock, and collects outputs and gradients on the first. So the host launches the work of all
    GPUs one after another, and the first GPU does and holds more than the others. DistributedDataParallel keeps
    the weights where they are and sends gradients while the backward runs.

    How the worth is predicted
    It is not: a recording of one process does not tell how fast the GPUs would run with a process each.

    When not
    The program cannot be started once for each GPU, as in a notebook.
    """
    if not any_like(case.trace, _FORWARD):
        return
    forward = case.names.filter(case.names.str.contains(_FORWARD))
    work = device_time.device_work(case.trace).filter(pl.col("kind") == "kernel")
    busy = {
        device: device_time.covered(rows).total_ns
        for device, rows in device_time.by_device(work)
        if rows.height
    }
    if len(busy) < LEAST_GPUS:
        seen(case, f"nn.DataParallel with {len(busy)} GPU at work: it wraps the model for nothing")
        return
    recorded_ns = max(case.program.measured_ns, 1)
    shares = sorted(100 * min(time_ns / recorded_ns, 1.0) for time_ns in busy.values())
    yield Finding(
        says=f"nn.DataParallel runs the model on {len(busy)} GPUs from one process; the busiest of them works "
        f"{shares[-1]:.0f} % of the recorded time, the least busy {shares[0]:.0f} %.",
        why="In every step the weights are copied to all GPUs, and one process launches the work of all of them.",
        fix=Fix(
            "Use DistributedDataParallel, one process for each GPU.",
            "# torchrun --nproc-per-node N train.py\n"
            'dist.init_process_group("nccl"); torch.cuda.set_device(local_rank)\n'
            "model = DistributedDataParallel(model.cuda(), device_ids=[local_rank])\n"
            "loader = DataLoader(dataset, sampler=DistributedSampler(dataset))",
        ),
        evidence={
            "gpus_count": len(busy),
            "most_busy_pct": shares[-1],
            "least_busy_pct": shares[0],
            "forwards_count": len(forward),
        },
        unless="the program cannot be started once for each GPU, as in a notebook.",
    )
