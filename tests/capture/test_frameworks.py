"""Training loops that frameworks run, with the frameworks themselves: what a step is, and that training stays what it was.

A step is one update of the parameters, whatever number of batches went into it. Each recorded step is looked at in the
recording: how many losses it holds, and that an optimizer ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace.capture.run_folder import RunFolder
from tests.capture.programs import SOURCES, python

FRAMEWORKS = ("transformers.trainer", "lightning.pytorch", "accelerate")
MISSING = [name for name in ("torch", "transformers", "lightning", "accelerate") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install 'foretrace[frameworks]'"
)
OFFLINE = {"HF_HUB_OFFLINE": "1"}
# Boundaries: the begin, two to wait, one to warm, two recorded.
SHORT, SHORT_STEPS = "wait=2, warmup=1, active=2, passes='light'", 5
COMMON = """
import hashlib, sys, warnings
warnings.simplefilter("ignore")  # of the frameworks, about one another and about torch
import torch
torch.set_num_threads(1)
def digest(model):
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()
"""
TRANSFORMERS = f"""{COMMON}
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{{"input_ids": torch.arange(8) + i % 8, "labels": torch.arange(8) + i % 8}} for i in range(64)]
def fit(*callbacks, **options):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        "out", max_steps=14, gradient_accumulation_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="no", logging_strategy="no", **options,
    )
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=list(callbacks)
    )
    trainer.train()
    return trainer.state.global_step, digest(trainer.model)
"""
LIGHTNING = f"""{COMMON}
import logging
import lightning.pytorch as lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fails_at = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1), None
    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.second(self.first(batch)), torch.zeros(len(batch), 1))
    def training_step(self, batch, number):
        if number == self.fails_at:
            raise ValueError("mine")
        return self.loss(batch)
    def validation_step(self, batch, number):
        self.loss(batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)
class TwoOptimizers(Model):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, number):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.first, self.second)]
def fit(*callbacks, kind=Model, accumulate=1, fails_at=None, max_steps=14):
    torch.manual_seed(0)
    model = kind()
    model.fails_at = fails_at
    batches = torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=4)
    trainer = lightning.Trainer(
        max_steps=max_steps, accumulate_grad_batches=accumulate, accelerator="cpu", logger=False, callbacks=list(callbacks),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, batches, batches)  # the sanity check of validation comes first
    return trainer.global_step, digest(model)
"""
# Accelerate's loop; and the loop of torchtitan, where an optimizer holds those of each part of the model.
LOOPS = f"""{COMMON}
import foretrace
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
def loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch), torch.zeros(len(batch), 1))
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
def accelerated(scaler=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    batches = torch.utils.data.DataLoader(torch.randn(144, 8), batch_size=4)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    if scaler:
        optimizer = AcceleratedOptimizer(optimizer.optimizer, scaler=scaler)
    def fit(p=None):
        for batch in batches:
            with accelerator.accumulate(model):
                value = loss(model, batch)
                accelerator.backward(scaler.scale(value) if scaler else value)
                optimizer.step()
                optimizer.zero_grad()
            if p:
                p.step()
        return digest(model)
    return fit
class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=0.1) for part in parts]
        super().__init__([value for part in parts for value in part.parameters()], {{}})
    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()
    def zero_grad(self, set_to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)
def titan(profiler=None):
    parts = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    container = Container(parts)
    for _ in range(14):
        container.zero_grad()
        for _ in range(2):
            loss(lambda batch: parts[1](parts[0](batch)), torch.ones(4, 8)).backward()
        container.step()
        if profiler:
            profiler.step()
"""


def printed(folder: Path, code: str, **options: Any) -> str:
    """What a program printed that ended well."""
    done = python(folder, code, modules=FRAMEWORKS, environ=OFFLINE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts(run: Path) -> Mapping[str, Any]:
    """What is known of the one rank of a Run that is complete."""
    read = RunFolder.read(run)
    assert read.problems == ()
    assert read.ranks[0].facts["status"] == "complete"
    return read.ranks[0].facts


def recorded_steps(run: Path, loss: str, optimizer: str = "AdamW") -> list[tuple[int, int]]:
    """For each recorded step how many losses it holds and how many optimizers stepped, one of which ends it."""
    names = {loss: "losses", f"Optimizer.step#{optimizer}.step": "optimizers"}
    spans = foretrace.open(run / "rank0" / "light.json", cache=False).spans
    spans = spans.with_columns(
        what=pl.col("name").cast(pl.String).replace_strict(names, default=None, return_dtype=pl.String),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    ).filter(pl.col("step").is_not_null())
    counts = []
    for _, of_step in spans.sort("step", "end_ns").group_by("step", maintain_order=True):
        found = of_step["what"].drop_nulls().to_list()
        assert found[-1:] in ([], ["optimizers"])
        counts.append((found.count("losses"), found.count("optimizers")))
    return counts


def test_transformers(tmp_path: Path) -> None:
    """The callback, and a Trainer within `profile`; training gives the same parameters to the last bit."""
    out = printed(
        tmp_path,
        f"""{TRANSFORMERS}
import foretrace
evaluates = dict(eval_strategy="steps", eval_steps=7)  # after what is recorded: its losses would count
callback = foretrace.callbacks.hugging_face("called", {SHORT})
print(fit(callback, **evaluates) == fit(**evaluates), callback.path.name)
with foretrace.profile("within", {SHORT}):
    inside = fit()
print(inside == fit())
print(fit(foretrace.callbacks.hugging_face("stopped", {SHORT}, stop_after_capture=True))[0])
""",
    )
    words = [line for line in out.splitlines() if not line.startswith("{")]  # transformers prints its metrics
    assert words == ["True called", "True", str(SHORT_STEPS + 1)]
    for name, source in (
        ("called", "foretrace.step()"),
        ("within", "optimizer.step() of AdamW"),
        ("stopped", "foretrace.step()"),
    ):
        found = facts(tmp_path / name)
        assert (found["step_source"], found["steps_seen"]) == (source, SHORT_STEPS)
        assert found["versions"]["transformers"]
        assert recorded_steps(tmp_path / name, "aten::cross_entropy_loss") == [(2, 1)] * 2


def test_lightning(tmp_path: Path) -> None:
    """Accumulation, validation first, two optimizers by hand, an error in training: each with the same parameters."""
    out = printed(
        tmp_path,
        f"""{LIGHTNING}
import foretrace
callback = foretrace.callbacks.lightning("called", {SHORT})
print(fit(callback, accumulate=3) == fit(accumulate=3), callback.path.name)
print(fit(foretrace.callbacks.lightning("stopped", {SHORT}, stop_after_capture=True), accumulate=2)[0])
two = dict(kind=TwoOptimizers, max_steps=28)
print(fit(foretrace.callbacks.lightning("two", {SHORT}), **two) == fit(**two))
try:
    fit(foretrace.callbacks.lightning("failed", {SHORT}), fails_at=3)
except ValueError as error:
    print(error)
with foretrace.profile("within", {SHORT}):
    fit(accumulate=3)
""",
    )
    assert out.splitlines() == ["True called", str(SHORT_STEPS + 1), "True", "mine"]
    for name in ("called", "stopped", "two", "within"):
        assert facts(tmp_path / name)["steps_seen"] == SHORT_STEPS
    assert recorded_steps(tmp_path / "called", "aten::mse_loss") == [(3, 1)] * 2
    assert recorded_steps(tmp_path / "within", "aten::mse_loss") == [(3, 1)] * 2
    assert recorded_steps(tmp_path / "two", "aten::mse_loss", "SGD") == [(2, 2)] * 2
    failed = RunFolder.read(tmp_path / "failed").ranks[0].facts
    assert (failed["status"], "ValueError" in failed["reason"]) == ("partial", True)


def test_accelerate_and_torchtitan(tmp_path: Path) -> None:
    """Batches that only accumulate are no steps; optimizers of the parts of a model step together."""
    out = printed(
        tmp_path,
        f"""{LOOPS}
plain = accelerated()()
fit = accelerated()
with foretrace.callbacks.accelerate(accelerator, "called", {SHORT}) as p:
    print(fit(p) == plain)
for name, scaler in (("adopted", None), ("scaled", torch.amp.GradScaler("cpu"))):
    fit = accelerated(scaler)
    with foretrace.profile(name, {SHORT}):
        fit()
with foretrace.profile("titan", {SHORT}):
    titan()
with foretrace.profile("own", {SHORT}):
    waits = torch.profiler.schedule(wait=100, warmup=1, active=1)
    with torch.profiler.profile(schedule=waits) as profiler:
        titan(profiler)
""",
    )
    assert out == "True\n"
    source = {name: facts(tmp_path / name)["step_source"] for name in ("called", "scaled", "titan", "own")}
    assert source["called"] == "foretrace.step()"
    assert source["titan"] == "optimizer.step() of AdamW"
    assert source["own"] == "the program's own prof.step()"
    for name in ("called", "adopted", "scaled"):
        assert recorded_steps(tmp_path / name, "aten::mse_loss", "SGD") == [(3, 1)] * 2, name
    for name in ("titan", "own"):
        assert recorded_steps(tmp_path / name, "aten::mse_loss") == [(2, 2)] * 2, name


@pytest.mark.parametrize(
    ("program", "call", "loss"),
    [(TRANSFORMERS, "fit()", "aten::cross_entropy_loss"), (LIGHTNING, "fit(accumulate=2)", "aten::mse_loss")],
    ids=["transformers", "lightning"],
)
def test_foretrace_run_finds_the_steps_without_a_callback(
    program: str, call: str, loss: str, tmp_path: Path
) -> None:
    """`foretrace run -- python train.py`: one update a step, and the parameters are what they are without it."""
    plain = printed(tmp_path, f"{program}\nprint({call})\n").splitlines()[-1]
    script = tmp_path / "program.py"  # as `printed` left it
    command = [sys.executable, "-m", "foretrace", "run", "-q", "-o", str(tmp_path / "run")]
    schedule = ["--wait", "2", "--warmup", "1", "--active", "2", "--passes", "light"]
    done = subprocess.run(
        [*command, *schedule, "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **OFFLINE, "PYTHONPATH": str(SOURCES)},
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [plain]), done.stderr
    found = facts(tmp_path / "run")
    assert (found["step_source"], found["steps_seen"]) == ("optimizer.step() of AdamW", SHORT_STEPS)
    assert recorded_steps(tmp_path / "run", loss) == [(2, 1)] * 2
