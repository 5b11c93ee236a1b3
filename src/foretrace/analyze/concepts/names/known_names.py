"""What names in a recording mean, apart from kernels and operators: runtime calls, torch.compile, the profiler.

Each entry: the kind of name, a pattern, what it means, and what to watch for. The first match counts. Sources: part 1 of
the article "Profiling in PyTorch", and the sources of torch and CUPTI.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OPERATOR, RUNTIME, COMPILE, PROFILER, ANNOTATION = (
    "operator",
    "runtime call",
    "torch.compile row",
    "profiler row",
    "annotation",
)
AUTOGRAD, COPY, COLLECTIVE, PYTHON = "autograd node", "copy", "collective", "Python call"


class Known(NamedTuple):
    """What names of this pattern mean."""

    pattern: re.Pattern[str]
    kind: str
    says: str
    watch: str | None = None


def known(kind: str, pattern: str, says: str, watch: str | None = None) -> Known:
    return Known(re.compile(pattern), kind, says, watch)


_RT = r"^(?:cuda|hip)"
KNOWN: tuple[Known, ...] = (
    # Python, recorded with with_stack=True.
    known(PYTHON, r"^nn\.Module: ", "a call of an nn.Module: its class, and a number for the instance"),
    known(
        PYTHON,
        r"\.py\(\d+\): |^<built-in |^<string>\(|^<frozen ",
        "a Python function: file, first line of the function, name",
    ),
    # Annotations of the program.
    known(
        ANNOTATION,
        r"^ProfilerStep#?\d*\*?$",
        "one step, from one profiler.step() to the next, on the host",
        "the host may finish a step long before the GPU does; see `show steps`",
    ),
    known(
        ANNOTATION,
        r"^Optimizer\.step#",
        "torch's annotation of optimizer.step(); wrapped optimizers nest it in itself",
        "a plain sum counts nested ranges twice; `show sections` counts them once",
    ),
    known(ANNOTATION, r"^Optimizer\.zero_grad#", "torch's annotation of optimizer.zero_grad()"),
    known(
        ANNOTATION,
        r"^enumerate\(Data(?:Loader|Pipe)\)#",
        "the training loop waits for the next batch",
        "if long, there are too few workers or the transform is slow (num_workers, pin_memory, prefetch_factor)",
    ),
    known(ANNOTATION, r"^DistributedDataParallel\.forward$", "the forward of a DDP-wrapped model"),
    known(
        COLLECTIVE,
        r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):",
        "the host side of a collective: enqueues it (NCCL) or runs it (gloo)",
        "NCCL's time is in its kernel on the GPU, gloo's is here",
    ),
    known(
        COLLECTIVE,
        r"^c10d::|^record_param_comms$",
        "the operator of a collective; record_param_comms contains its sizes and group",
    ),
    # torch.compile.
    known(
        COMPILE,
        r"^Torch-Compiled Region",
        "runs a part of the program compiled by torch.compile: region K, version M",
        "a new version number of the same region is a recompilation",
    ),
    known(
        COMPILE,
        r"^TorchDynamo Cache Lookup",
        "checks the guards of a compiled function, to find the matching version",
        "long lists of guards make it slow; a miss triggers a recompilation",
    ),
    known(
        COMPILE,
        r"^AOTDispatcher Runtime Wrapper Prologue",
        "prepares the inputs of a compiled graph, before its kernels",
    ),
    known(
        COMPILE,
        r"CompiledFxGraph",
        "runs one compiled graph; the name contains the graph's hash",
        "the same hash each step is a cache hit; a changed one is a recompilation",
    ),
    known(
        COMPILE,
        r"^(?:CompiledFunction|torch::autograd::CppNode<)",
        "the autograd function around a compiled or C++ graph",
    ),
    known(
        COMPILE,
        r"^Pregraph bytecode$",
        "Python bytecode that Dynamo runs before a compiled graph, for example to unpack its inputs",
    ),
    known(COMPILE, r"^(?:CUDAGraph|cudagraph)|cudagraphify", "records or replays a CUDA graph"),
    known(
        COMPILE,
        r"^(?:dynamo|compile|inductor|_compile|entire_frame_compile|backend_compile|OutputGraph)",
        "compilation itself",
        "should happen before the first step; in a recording it is a cold start or a recompilation",
    ),
    # The profiler itself.
    known(
        PROFILER,
        r"^Activity Buffer Request$",
        "CUPTI allocates memory for its records: profiler overhead",
        "the first one causes an offset of about 2.5 ms between host and GPU; it is not part of the program",
    ),
    known(PROFILER, r"^Buffer Flush$", "CUPTI delivers its records: profiler overhead"),
    known(PROFILER, r"^(?:Instrumentation|Resource|Overhead|Trace CPU Overhead)", "profiler overhead"),
    known(
        PROFILER,
        r"^Lazy Function Loading$|^Runtime Triggered Module Loading$",
        "CUDA loads a kernel's code on first use: a cold start",
        "only in the first step that uses the kernel; warm up before recording",
    ),
    known(
        PROFILER,
        r"^Command Buffer Full$",
        "the launch queue is full: the host must wait before it can launch more",
        "the host is far ahead of the GPU, which is fine: the program is GPU-limited",
    ),
    known(
        PROFILER,
        r"^PyTorch Profiler|^Iteration Start: PyTorch Profiler|^Record Window End",
        "the profiler's own recording window",
    ),
    known(
        PROFILER,
        r"^\[memory\]$",
        "a change of allocated memory: bytes allocated (positive) or freed (negative)",
    ),
    # Runtime calls.
    known(
        RUNTIME,
        r"^(?:cudaLaunchKernel|cudaLaunchKernelExC|cuLaunchKernel|cuLaunchKernelEx|hipLaunchKernel|hipExtLaunchKernel|"
        r"hipModuleLaunchKernel|hipExtModuleLaunchKernel)",
        "puts one kernel into a stream's queue and returns after 5 to 10 µs; the kernel runs later",
        "many kernels shorter than this make the program CPU-limited: fuse them, or use CUDA graphs",
    ),
    known(RUNTIME, r"LaunchCooperativeKernel", "launches a kernel whose blocks synchronise with each other"),
    known(
        RUNTIME,
        r"GraphLaunch",
        "launches all the kernels of a CUDA graph in one call",
        "its kernels are not linked to operators; `show graphs` matches them with the capture",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)(?:DeviceSynchronize|CtxSynchronize)",
        "the host waits until the whole device is done",
        "one at the very end is the profiler's flush; inside steps it serialises host and GPU",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)StreamSynchronize",
        "the host waits until all work queued in one stream is done",
        "caused by .item(), .cpu(), print(tensor) or a pageable copy; its duration is waiting, not work; see `show syncs`",
    ),
    known(RUNTIME, r"^(?:cuda|hip|cu)EventSynchronize", "the host waits for an event of a stream"),
    known(RUNTIME, r"^(?:cuda|hip|cu)EventQuery", "asks whether an event has occurred; does not wait"),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)EventRecord",
        "marks a point in a stream, for others to wait for or to measure time",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)StreamWaitEvent",
        "makes one stream wait for a point in another; the host does not wait",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)Memcpy\w*Async",
        "puts a copy into a stream's queue",
        "with pageable host memory it waits for the copy anyway: pin the memory",
    ),
    known(
        RUNTIME,
        r"^hipMemcpyWithStream",
        "copies in a stream, and waits until the copy is done",
        "on ROCm what .item(), .cpu() and copies of pageable memory call; see `show syncs`",
    ),
    known(RUNTIME, r"^(?:cuda|hip|cu)Memcpy", "copies, and waits until the copy is done"),
    known(RUNTIME, r"^(?:cuda|hip|cu)Memset", "fills device memory with one byte value"),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)(?:Malloc|MemAlloc|MemCreate|MemMap)",
        "allocates memory from the driver",
        "torch's allocator caches memory, so this should not appear in steady steps",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip|cu)(?:Free|MemFree|MemUnmap)",
        "returns memory to the driver, and waits for the whole device",
        "inside steps: the allocator ran out and emptied its cache (fragmentation, or memory pressure)",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip)(?:HostAlloc|HostMalloc|MallocHost|HostRegister)",
        "pins host memory; slow, so best done once per buffer",
    ),
    known(
        RUNTIME,
        r"OccupancyMaxActiveBlocks|OccupancyAvailable",
        "asks how many blocks of a kernel fit on an SM",
        "right before a launch: a library chooses its kernel (GEMM, convolution); elementwise kernels do not ask",
    ),
    known(
        RUNTIME,
        r"FuncGetAttributes|FuncSetAttribute|FuncGetParam",
        "reads or sets a kernel's limits, such as its shared memory, before a launch",
    ),
    known(
        RUNTIME,
        r"ModuleLoad|LibraryLoad|ModuleGetFunction|LibraryGet|KernelGet",
        "loads a kernel's code: a cold start",
    ),
    known(
        RUNTIME,
        r"StreamIsCapturing|StreamGetCaptureInfo|ThreadExchangeStreamCaptureMode",
        "asks whether a CUDA graph is being recorded",
    ),
    known(
        RUNTIME,
        r"^(?:cuda|hip)(?:GetDevice|SetDevice|DeviceGet|GetLastError|PeekAtLastError|PointerGet|DriverGet)",
        "a query or setting; cheap",
    ),
    known(
        RUNTIME, r"^(?:cuda|hip)Graph|StreamBeginCapture|StreamEndCapture", "creates or changes a CUDA graph"
    ),
    known(RUNTIME, _RT + r"[A-Z]|^cu[A-Z][a-z]", "a call of the CUDA or HIP runtime"),
    # Waits, as recorded by the device.
    known(
        RUNTIME,
        r"^(?:Context|Device|Event|Stream) Sync(?:hronize)?$",
        "a wait of the host as recorded by the device: its duration and what it waited for",
    ),
    known(
        RUNTIME,
        r"^Stream Wait Event$",
        "a stream waits for an event of another stream; the host does not wait",
    ),
    # Copies, as recorded by the device.
    known(
        COPY,
        r"^(?:Memcpy|CopyHostToDevice|CopyDeviceToHost|CopyDeviceToDevice) ?\(?(?:HtoD|H2D)?.*(?:Pageable -> Device)",
        "a copy from pageable host memory to the GPU",
        "pin the memory (pin_memory=True) and copy with non_blocking=True",
    ),
    known(COPY, r"^Memcpy HtoD|^CopyHostToDevice", "a copy from the host to the GPU"),
    known(
        COPY,
        r"^Memcpy DtoH|^CopyDeviceToHost",
        "a copy from the GPU to the host",
        "often caused by .item() or .cpu(), which wait for it",
    ),
    known(
        COPY,
        r"^Memcpy DtoD|^CopyDeviceToDevice",
        "a copy within the GPU",
        "right before a GEMM: addmm copies its bias into the result",
    ),
    known(COPY, r"^Memcpy PtoP", "a copy from one GPU to another"),
    known(COPY, r"^Memset", "fills GPU memory with one byte value"),
    # Autograd.
    known(
        AUTOGRAD,
        r"^autograd::engine::evaluate_function",
        "autograd runs one node of the backward graph; the work is inside",
    ),
    known(AUTOGRAD, r"AccumulateGrad", "adds a gradient to a parameter's .grad, or sets it the first time"),
    known(
        AUTOGRAD,
        r"^CheckpointFunctionBackward$",
        "activation checkpointing: runs the forward again, then its backward",
        "saves memory at the cost of about a third more compute",
    ),
    known(AUTOGRAD, r"^\w+Backward\d*$", "the backward of the operator it is named after"),
)
