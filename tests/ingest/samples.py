"""Small hand-made recordings that hold one of everything a reader meets; the fuzzer starts from them."""

from __future__ import annotations

KINETO = b"""{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H200", "numSms": 132, "maxThreadsPerMultiprocessor": 2048}
  ],
  "record_shapes": 1, "with_stack": 1, "profile_memory": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 760, "tid": 760,
    "ts": 1000.000, "dur": 900.000,
    "args": {
      "External id": 1, "Ev Idx": 0
    }
  },
  {
    "ph": "X", "cat": "python_function", "name": "train.py(12): step", "pid": 760, "tid": 760,
    "ts": 1001.000, "dur": 800.000,
    "args": {
      "Python id": 1, "Python parent id": null, "Ev Idx": 1
    }
  },
  {
    "ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 760, "tid": 760,
    "ts": 1002.000, "dur": 300.500,
    "args": {
      "Python id": 2, "Python parent id": 1, "Python module id": 0
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 760, "tid": 760,
    "ts": 1003.001, "dur": 100.250,
    "args": {
      "External id": 7,"Sequence number": 31, "Fwd thread id": 0, "Concrete Inputs": ["", "False"], "Input type": ["float", "c10::Half"], "Input Strides": [[64, 1], []], "Input Dims": [[64, 64], []]
    }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 760, "tid": 760,
    "ts": 1010.000, "dur": 5.125,
    "args": {
      "External id": 7, "cbid": 211, "correlation": 55
    }
  },
  {
    "ph": "s", "id": 55, "pid": 760, "tid": 760, "ts": 1010.000,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 760, "tid": 760, "ts": 1004.000,
    "args": {
      "Total Reserved": 4096, "Total Allocated": 1024, "Bytes": 512, "Device Id": 0, "Device Type": 1, "Addr": 140509181980160
    }
  },
  {
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 760, "tid": 760, "ts": 1404.000,
    "args": {
      "Total Reserved": 4096, "Total Allocated": 512, "Bytes": -512, "Device Id": 0, "Device Type": 1, "Addr": 140509181980160
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "void gemm<float, \\"x\\">(int)", "pid": 0, "tid": 7,
    "ts": 1020.000, "dur": 50.000,
    "args": {
      "External id": 7, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 55, "registers per thread": 168, "shared memory": 134144, "blocks per SM": 0.090909, "warps per SM": 1.090909, "grid": [12, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 5
    }
  },
  {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7,
    "ts": 1080.500, "dur": 2.750,
    "args": {
      "device": 0, "stream": 7, "correlation": 999, "bytes": 2048, "memory bandwidth (GB/s)": 0.7447
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "MmBackward0", "pid": 760, "tid": 785,
    "ts": 1500.000, "dur": 20.000,
    "args": {
      "External id": 9, "Sequence number": 31, "Fwd thread id": 1, "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Comms Id": 18446744073709551615
    }
  },
  {
    "ph": "C", "name": "GPU 0 Utilization", "pid": 0, "ts": 1600, "args": {"GPU Utilization": 0.5}
  },
  {
    "name": "thread_name", "ph": "M", "ts": 1000.000, "pid": 760, "tid": 785,
    "args": {
      "name": "thread 785 (pt_autograd_0)"
    }
  },
  {
    "ph": "X", "cat": "Trace", "ts": 990.000, "dur": 1200.000,
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {
      "Op count": 0
    }
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 2200.000
  }
  ],
  "traceName": "sample.json",
  "distributedInfo": {"rank": 2, "world_size": 4}
}
"""

COMPACT = b"""{"schemaVersion":1,"traceEvents":[\
{"ph":"X","cat":"Operator","name":"aten::add","pid":1,"tid":"1","ts":1621401187223197,"dur":21,"args":{"External id":2,"Input dims":[[2,3]]}},\
{"ph":"X","cat":"Operator","name":"ProfilerStep#0","pid":1,"tid":"1","ts":1621401187223000,"dur":600,"args":{}},\
{"ph":"X","cat":"Runtime","name":"hipLaunchKernel","pid":1,"tid":"1","ts":1621401187223200,"dur":3,"args":{"correlation":4,"external id":2,"grid":[1,2,3]}},\
{"args":{"correlation":4,"device":0,"stream":0,"grid":[1,2],"blocks per SM":"inf","theoretical occupancy %":50},"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":"stream 0","ts":1621401187223300.25,"dur":9.5}\
]}"""

BARE_LIST = b"""[{"ph": "X", "name": "a", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1},
 {"ph": "X", "name": "b", "ts": 1.75, "dur": 1, "pid": 1, "tid": 1, "args": {"note": "x\\ny", "list": [1, {"k": [2.50]}], "ok": true}}]"""

# Two processes with the same ids, on two devices and on one that they share.
MERGED = b"""{"schemaVersion": 1, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 40, "tid": 40, "ts": 1, "dur": 9, "args": {"External id": 5}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 40, "tid": 40, "ts": 2, "dur": 3, "args": {"correlation": 8}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": "[TP01] 41", "tid": 41, "ts": 2, "dur": 9, "args": {"External id": 5}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "[TP01] 41", "tid": 41, "ts": 3, "dur": 3, "args": {"correlation": 8}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 42, "tid": 42, "ts": 2.5, "dur": 9, "args": {"External id": 5}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "tid": 42, "ts": 4, "dur": 3, "args": {"correlation": 8}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 42, "tid": 42, "ts": 0.5, "dur": 12},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 6, "dur": 4, "args": {"device": 0, "stream": 7, "correlation": 8}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 11, "dur": 5, "args": {"device": 0, "stream": 7, "correlation": 8}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": "[TP01] 0", "tid": 7, "ts": 7, "dur": 4, "args": {"device": 0, "stream": 7, "correlation": 8}},
  {"ph": "C", "name": "free", "pid": 40, "tid": 40, "ts": 5, "args": {"bytes": 7}}
]}"""


def _repeated() -> bytes:
    """The same events over and over, only times and numbers move on: what lies between these is learned by the native scanner."""
    rounds = [
        f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 8,
    "ts": {100 + 10 * i}.500, "dur": 4.250,
    "args": {{
      "External id": {i + 1},"Record function id": 0, "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Ev Idx": {i}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8,
    "ts": {101 + 10 * i}.500, "dur": 1.000,
    "args": {{
      "External id": {i + 1}, "cbid": 211, "correlation": {i + 50}
    }}
  }},
  {{
    "ph": "s", "id": {i + 50}, "pid": 7, "tid": 8, "ts": {101 + 10 * i}.500, "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": 7,
    "ts": {103 + 10 * i}.500, "dur": 2.000,
    "args": {{
      "External id": {i + 1}, "device": 0, "stream": 7, "correlation": {i + 50}, "grid": [8, 1, 1], "block": [64, 1, 1], "note": "same"
    }}
  }},
  {{
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 8, "ts": {104 + 10 * i}.000,
    "args": {{
      "Total Allocated": 4096, "Bytes": {512 if i % 2 else -512}, "Addr": 123456, "Device Id": 0, "Device Type": 1
    }}
  }}"""
        for i in range(12)
    ]
    return ('{\n  "traceEvents": [\n' + ",\n".join(rounds) + "\n  ]\n}\n").encode()


REPEATED = _repeated()
SEEDS = (KINETO, COMPACT, BARE_LIST, MERGED, REPEATED)
