"""How much of a server's GPU time is attributed where the capture of its CUDA graphs was recorded.

    python benchmarks/server_capture.py record OUT     # on a GPU, with torch and transformers: about a minute
    python benchmarks/server_capture.py judge OUT      # anywhere with Foretrace

The server is transformers' own (continuous batching: paged attention, prefill and decode mixed, a CUDA graph for each padded size, in
a thread of its own) with a Llama of random weights. `record` writes OUT/server/{trace,capture}.json.gz: the graphs of `capture` were
captured before `trace` began; what the requests of `trace` met first was captured there. `judge` prints the share of the graphs'
GPU time that Foretrace attributed, without and with the capture, and how many of the operators it names ran that same kernel
eagerly in the recordings: the server runs every size once eagerly before it captures it.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.graph_capture import DEVICE, events_of, replayed, save  # noqa: E402

LAYERS, WIDTH, HEADS, WORDS = 8, 1024, 16, 32_000
NEW_TOKENS = 40
PROMPTS = tuple(20 + 7 * number % 50 for number in range(16))  # tokens of each request
BAR_PCT = 80.0


def record(out: Path, *, device: str = "cuda") -> int:
    """Records the capture of the first sizes, then requests."""
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation import ContinuousBatchingConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
    asked = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        num_blocks=16, block_size=256, max_batch_tokens=256, max_requests_per_batch=32,
        use_cuda_graph=device == "cuda", use_async_batching=False,
    )  # fmt: skip
    prompts = [torch.randint(1, WORDS, (length,)).tolist() for length in PROMPTS]

    def serve() -> None:
        model.generate_batch(prompts, asked, continuous_batching_config=batching, persistent_manager=True)

    with profiler(torch):  # the first recording starts CUPTI, which is slow
        torch.ones(1, device=device)
    with profiler(torch) as recorded:
        serve()
    save(recorded, out / "server", "capture")
    with profiler(torch) as recorded:
        serve()
    save(recorded, out / "server", "trace")
    return 0


def profiler(torch: Any) -> Any:
    profile = torch.profiler
    return profile.profile(
        activities=[profile.ProfilerActivity.CPU, profile.ProfilerActivity.CUDA],
        record_shapes=True,
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
    )


def judge(out: Path) -> int:
    """Prints both shares, and how many operators are right; 1 where fewer than 80 % are attributed with the capture."""
    trace, capture = (out / "server" / f"{name}.json.gz" for name in ("trace", "capture"))
    shares = {}
    for name, captures in (("without its capture", []), ("with its capture", [capture])):
        nodes = [node for launch in replayed(trace, captures) for node in launch]
        total_ns = sum(node.dur_ns for node in nodes)
        known = [node for node in nodes if node.belongs.op]
        shares[name] = 100 * sum(node.dur_ns for node in known) / total_ns if total_ns else 0.0
        eager = eager_operators(trace) | eager_operators(capture)
        right = sum((node.name, node.belongs.op) in eager for node in known)
        print(
            f"{name}: {len(nodes)} nodes of graphs, {shares[name]:.1f} % of their GPU time attributed;"
            f" {right} of {len(known)} operators ran that kernel eagerly too"
        )
    return int(shares["with its capture"] < BAR_PCT)


def eager_operators(path: Path) -> set[tuple[str, str]]:
    """Kernels and the operators that launched them outside of graphs, by the standard library alone."""
    events = events_of(path)
    operators = {
        event["args"]["External id"]: event["name"] for event in events if event.get("cat") == "cpu_op"
    }
    pairs = collections.Counter[tuple[str, str]]()
    for event in events:
        inside_graph = event.get("args", {}).get("graph node id")
        if event.get("cat") in DEVICE and not inside_graph:
            operator = operators.get(event["args"].get("External id"))
            if operator:
                pairs[event["name"], operator] += 1
    return set(pairs)


def main() -> int:
    """Records or judges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    return record(options.out, device=options.device) if options.what == "record" else judge(options.out)


if __name__ == "__main__":
    sys.exit(main())
