"""Every program of examples/ runs on a CPU within seconds, and does what its README line says."""

from __future__ import annotations

import argparse
import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

import foretrace  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
VARIANTS = [
    ("matmul_add", "--size", "32", "--dtype", "fp32"),
    ("matmul_add", "--size", "32", "--warmup"),
    ("linear", "--batch", "4", "--in_dim", "8", "--out_dim", "16"),
    ("gated_mlp", "--batch", "2", "--seq", "4", "--dim", "8", "--hidden", "16"),
    ("attention", "--seq", "16", "--backend", "math"),
    ("attention", "--seq", "16", "--backend", "flash"),
    ("transformer_layer", "--batch", "2", "--sequence", "16"),
    ("transformer_layer", "--batch", "2", "--sequence", "16", "--optimised"),
    ("slow_model",),
    ("slow_model", "--fixed"),
    ("resnet50", "--batch", "2", "--image", "32"),
    ("resnet50", "--batch", "2", "--image", "32", "--channels-last"),
    ("transformer_memory", "--layers", "2"),
    ("transformer_memory", "--layers", "2", "--checkpoint"),
    ("gpt_labels", "--ctx", "16", "--batch", "1"),
    ("gpt_labels", "--ctx", "16", "--batch", "1", "--precision", "bf16", "--mode", "fwd"),
    ("starved_loader",),
    ("starved_loader", "--workers", "1"),
    ("tokenise",),
    ("tokenise", "--batched"),
]
LABELS = {
    "warmup", "measure_loop", "FORWARD", "LOSS", "BACKWARD", "OPTIMIZER", "OPTIMIZER.step", "OPTIMIZER.zero_grad",
    "MHA(total)", "QKV projections", "RoPE(Q)", "RoPE(K)", "attn_logits (QK^T) + mask", "softmax",
    "attn*V (context)", "output proj",
}  # fmt: skip


def run(name: str, *arguments: str) -> str:
    """What a program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--device", "cpu", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a program in this process, which has torch already."""

    def ran(name: str, *arguments: str) -> str:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, "--device", "cpu", *arguments])
        state = torch.get_rng_state()
        runpy.run_path(path, run_name="__main__")
        torch.set_rng_state(state)
        return capsys.readouterr().out

    return ran


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_runs_for_a_few_steps(variant: tuple[str, ...], run_here: Callable[..., str]) -> None:
    apart = variant == VARIANTS[0] or "--workers" in variant  # which are processes too
    shown = (run if apart else run_here)(*variant, "--steps", "3")
    assert re.search(r"^[\d.,]+ (ms|us) per step", shown, re.M)


def test_every_program_is_run_and_told_of() -> None:
    assert {name for name, *_ in VARIANTS} == set(PROGRAMS)
    told = set(re.findall(r"\[(\w+)\.py\]\(\1\.py\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert told == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_options_in_the_readme_exist(name: str) -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    used = {
        option
        for line in re.findall(rf"python examples/{name}\.py([^`\n]*)", readme)
        for option in re.findall(r"--[a-z_-]+", line)
    }
    known = set(
        re.findall(r'add_argument\("(--[a-z_-]+)"', (EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    )
    assert used <= known
    assert {"--device", "--steps"} <= known


def test_a_recording_is_named_after_what_was_recorded(tmp_path: Path, run_here: Callable[..., str]) -> None:
    for state in ((), ("--warmup",)):
        run_here("matmul_add", "--size", "16", "--steps", "1", "--record", str(tmp_path), *state)
    assert {path.name for path in tmp_path.iterdir()} == {
        "16_bf16_cold_eager.json",
        "16_bf16_warm_eager.json",
    }
    trace = foretrace.open(tmp_path / "16_bf16_warm_eager.json")
    names = trace.spans["name"].cast(str).to_list()
    assert names.count("matmul_add") == 3, "the three active steps"


def test_every_backend_of_attention_can_be_chosen(run_here: Callable[..., str]) -> None:
    """What a CPU lacks is said in a line, with its name."""
    assert set(load("attention").BACKENDS) == {"math", "flash", "efficient", "cudnn"}
    with pytest.raises(SystemExit, match=r"^the backend cudnn does not run here"):  # text: exit code 1
        run_here("attention", "--backend", "cudnn")


def test_backends_of_attention_agree() -> None:
    module = load("attention")
    torch.manual_seed(0)
    options = argparse.Namespace(batch=1, heads=2, seq=16, dim=8, device="cpu", dtype="fp32", backend="math")
    step = module.Step(options)
    by_math = step()
    step.backend = "flash"
    assert torch.allclose(by_math, step(), atol=1e-5)


def test_recordings_of_the_tutorials_layers(tmp_path: Path, run_here: Callable[..., str]) -> None:
    run_here(
        "gated_mlp",
        "--batch",
        "2",
        "--seq",
        "4",
        "--dim",
        "8",
        "--hidden",
        "16",
        "--steps",
        "1",
        "--record",
        str(tmp_path),
    )
    trace = foretrace.open(tmp_path / "mlp_2x4x8x16_eager.json")
    table = foretrace.analyze.run(trace, "operators").table
    flops = dict(zip(table["name"], table["total_flops"], strict=True))
    assert flops["aten::mm"] == 3 * (3 * 2 * 2 * 4 * 8 * 16), "three steps of three products"


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_step(tmp_path: Path) -> None:
    run("matmul_add", "--size", "16", "--steps", "1", "--record", str(tmp_path), "--warmup", "--compile")
    trace = foretrace.open(tmp_path / "16_bf16_warm_compile.json")
    assert any("Torch-Compiled Region" in name for name in trace.spans["name"].cast(str).to_list())


def test_the_transformer_layer_is_labelled() -> None:
    layer = load("transformer_layer").TransformerLayer(need_weights=True).eval()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recording,
        torch.no_grad(),
    ):
        layer(torch.randn(1, 4, 512))
    assert {"Self-Attention", "Add & Norm 1", "MLP", "Add & Norm 2"} <= {
        e.key for e in recording.key_averages()
    }


def test_the_fixed_model_computes_the_same() -> None:
    module = load("slow_model")
    slow, fixed = module.SlowModel(), module.FixedModel()
    fixed.load_state_dict(slow.state_dict())
    x = 5000 * torch.randn(8, 256)
    assert torch.equal(slow(x), fixed(x)), "large enough for both branches"


def test_resnet50_has_as_many_parameters_as_published() -> None:
    assert sum(each.numel() for each in load("resnet50").resnet50().parameters()) == 25_557_032


def test_checkpointing_keeps_less() -> None:
    module = load("transformer_memory")
    x = torch.randn(2, 16, 32)
    kept = [
        module.kept_for_backward(module.Encoder(32, 2, 64, 2, recompute=recompute), x)
        for recompute in (False, True)
    ]
    assert kept[0] > 4 * kept[1] > 0


def test_gpt_labels_are_those_of_the_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("gpt_labels")
    seen: set[str] = set()

    def record_function(name: str) -> Any:
        seen.add(name)
        return torch.profiler.record_function(name)

    monkeypatch.setattr(module, "record_function", record_function)
    monkeypatch.setattr(
        sys, "argv", ["gpt_labels", "--device", "cpu", "--ctx", "8", "--batch", "1", "--steps", "1"]
    )
    module.main()
    assert seen == LABELS


def test_a_step_in_half_precision_trains() -> None:
    module = load("gpt_labels")
    args = argparse.Namespace(
        size="tiny", device="cpu", compile=False, precision="bf16", mode="fwd_bwd", batch=1, ctx=8
    )
    trainer = module.Trainer(args)
    before = trainer.model.head.weight.clone()
    trainer.step()
    assert not torch.equal(before, trainer.model.head.weight)


def test_tokenising_in_batches_gives_the_same_tokens() -> None:
    module = load("tokenise")
    text = "bananaka tedozu. bananaka!".replace("!", ".")
    tokens = module.tokenise(text, remember=False)
    assert tokens == module.tokenise(text, remember=True)
    assert len(tokens) == module.LENGTH
    assert module.split_word("banaka") == [module.PIECES[piece] for piece in ("ba", "na", "ka")]
