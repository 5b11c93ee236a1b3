"""Changes made in torch without an edit of the program: what each does, and how it proves that it took effect."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from foretrace.capture import loader_patches, module_patches, optimizer_patches, patches  # noqa: E402
from foretrace.capture.results_watch import ResultsWatch  # noqa: E402
from foretrace.capture.side_effects import SideEffects  # noqa: E402


class Numbers(torch.utils.data.Dataset):  # type: ignore[name-defined]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> float:
        return float(place)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
    def __iter__(self) -> Iterator[float]:
        return iter((1.0, 2.0))


@pytest.fixture(autouse=True)
def torch_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a patch replaces is put back."""
    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", torch.utils.data.DataLoader.__init__)
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    for name in ("set_anomaly_enabled", "use_deterministic_algorithms", "set_num_threads", "save"):
        monkeypatch.setattr(torch, name, getattr(torch, name))
    for kind in (
        "Adam",
        "AdamW",
        "SGD",
        "Adagrad",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adadelta",
        "ASGD",
        "RMSprop",
        "Rprop",
    ):
        monkeypatch.setattr(getattr(torch.optim, kind), "__init__", getattr(torch.optim, kind).__init__)
    for kind in ("Adafactor", "Muon", "SparseAdam", "LBFGS"):
        if hasattr(torch.optim, kind):
            monkeypatch.setattr(getattr(torch.optim, kind), "__init__", getattr(torch.optim, kind).__init__)
    flag = type(torch.backends.cudnn).__dict__["deterministic"]
    monkeypatch.setattr(flag, "setter", flag.setter)


def net(**more: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), *more.values(), torch.nn.Linear(4, 2))


# --- DataLoader ------------------------------------------------------------------------------------------------


def test_workers_replace_what_the_program_gave_by_name_or_by_place() -> None:
    patch = loader_patches.Workers(2)
    patch.install()
    by_name = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=0)
    by_place = torch.utils.data.DataLoader(Numbers(), 2, False, None, None, 0)
    assert (by_name.num_workers, by_place.num_workers) == (2, 2)
    assert by_name.persistent_workers
    assert by_name.batch_size == by_place.batch_size == 2
    assert patch.changed == 2
    assert not patch.proof().applied  # nobody has asked for a batch: no worker is alive


def test_workers_that_are_alive_are_the_proof() -> None:
    patch = loader_patches.Workers(1)
    patch.install()
    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=2))
    next(batches)
    assert patch.proof() == patches.Proof(True, "1 worker is alive after the steps")
    assert loader_patches.batches_ahead() == 2
    batches._shutdown_workers()
    assert not patch.proof().applied


@pytest.mark.parametrize(
    ("dataset", "workers", "says"), [(Stream(), 0, "iterable"), (Numbers(), 4, "has 4 workers already")]
)
def test_loaders_that_workers_would_not_suit_stay_as_they_are(dataset: Any, workers: int, says: str) -> None:
    patch = loader_patches.Workers(2)
    patch.install()
    with warnings.catch_warnings(action="ignore"):
        loader = torch.utils.data.DataLoader(dataset, num_workers=workers)
    assert loader.num_workers == workers
    assert not patch.proof().applied
    assert says in patch.proof().says


def test_prefetch_and_persistent_workers_need_workers() -> None:
    ahead, lasting, pinned = (
        loader_patches.Prefetch(4),
        loader_patches.PersistentWorkers(),
        loader_patches.PinMemory(),
    )
    for patch in (ahead, lasting, pinned):
        patch.install()
    alone = torch.utils.data.DataLoader(Numbers())
    assert (alone.prefetch_factor, alone.persistent_workers, alone.pin_memory) == (None, False, True)
    assert "no workers" in ahead.proof().says
    with warnings.catch_warnings(action="ignore"):
        several = torch.utils.data.DataLoader(Numbers(), num_workers=1)
    assert (several.prefetch_factor, several.persistent_workers) == (4, True)
    assert pinned.proof() == patches.Proof(False, "the program uses no GPU")


# --- optimizers ------------------------------------------------------------------------------------------------


def step(optimizer: Any, model: Any) -> None:
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_optimizers_step_fused(kind: str) -> None:
    patch, model = optimizer_patches.FusedOptimizer(), net()
    patch.install()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, foreach=True)
    assert (optimizer.defaults["fused"], optimizer.defaults["foreach"]) == (True, None)
    assert not patch.proof().applied
    step(optimizer, model)
    assert patch.proof() == patches.Proof(True, f"{kind} took 1 steps with fused=True")


def test_an_optimizer_that_refuses_stays_as_it_was() -> None:
    """Fused needs floating-point parameters on one kind of device; a differentiable one refuses it too."""
    patch, model = optimizer_patches.FusedOptimizer(), net()
    patch.install()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, differentiable=True)
    assert optimizer.defaults["differentiable"]
    assert not optimizer.defaults["fused"]
    assert len(optimizer.param_groups[0]["params"]) == 4
    assert "Adam refuses it" in patch.proof().says


def test_what_an_optimizer_has_or_cannot_have_is_said() -> None:
    fused, foreach, model = optimizer_patches.FusedOptimizer(), optimizer_patches.ForeachOptimizer(), net()
    fused.install()
    assert "no optimizer of torch's" in fused.proof().says
    torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    assert fused.proof().says == "the program's SGD has it already"
    foreach.install()
    step(torch.optim.RMSprop(model.parameters()), model)
    assert foreach.proof().applied


# --- flags -----------------------------------------------------------------------------------------------------


def test_anomaly_mode_stays_off() -> None:
    patch = patches.AnomalyOff()
    patch.install()
    assert patch.proof().says == "the program does not turn it on"
    with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
        assert not torch.is_anomaly_enabled()
    assert patch.proof().applied


def test_deterministic_mode_stays_off() -> None:
    patch = patches.DeterministicOff()
    patch.install()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    assert patch.proof() == patches.Proof(True, "the program asked for it 2 times, and it is off")


def test_threads_are_what_was_tried_whatever_the_program_sets() -> None:
    before = torch.get_num_threads()
    patch = patches.Threads(before)
    patch.install()
    torch.set_num_threads(before + 3)
    assert patch.proof() == patches.Proof(True, f"torch.get_num_threads() is {before} after the steps")


def test_what_is_for_a_gpu_is_not_applied_without_one() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for patch in (patches.CudnnBenchmark(), patches.Tf32(), patches.ExpandableSegments()):
            patch.install()
            assert patch.proof() == patches.Proof(False, "the program uses no GPU")
    finally:
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision(before)


# --- modules ---------------------------------------------------------------------------------------------------


def test_only_outermost_modules_with_parameters_are_told_of_and_once() -> None:
    seen: list[Any] = []

    class Listening(patches.Patch):
        def adopt(self, root: Any) -> None:
            seen.append(root)

        def proof(self) -> patches.Proof:
            return patches.Proof(bool(seen), "told")

    roots = module_patches.Roots((Listening(),), ResultsWatch(0).call)
    plain = torch.nn.Module.__call__
    roots.install()
    model, loss = net(), torch.nn.CrossEntropyLoss()
    for _ in range(2):
        loss(model(torch.ones(3, 4)), torch.zeros(3, dtype=torch.long)).backward()
    assert seen == [model]
    assert roots.names == ["Sequential"]
    roots.remove()
    assert torch.nn.Module.__call__ is plain
    net()(torch.ones(3, 4))
    assert len(seen) == 1


def test_autocast_computes_in_bf16_and_returns_fp32() -> None:
    patch, model = module_patches.Bf16Autocast(), net()
    expected = model(torch.ones(3, 4))
    patch.adopt(model)
    out = model(torch.ones(3, 4))
    assert out.dtype == torch.float32
    assert not torch.equal(out, expected)
    assert torch.allclose(out, expected, rtol=0.05, atol=0.05)
    assert patch.proof().applied
    assert "_compiled_call_impl" not in model.state_dict()


def test_outputs_of_every_kind_become_fp32() -> None:
    half = torch.ones(1, dtype=torch.bfloat16)
    out = module_patches.mapped({"logits": half, "rest": [half, (half, 3)]}, module_patches._to_fp32)
    assert out["logits"].dtype == out["rest"][0].dtype == out["rest"][1][0].dtype == torch.float32
    assert out["rest"][1][1] == 3


def test_channels_last_needs_images() -> None:
    images = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2))
    patch, flat = module_patches.ChannelsLast(), module_patches.ChannelsLast()
    expected = images(torch.ones(2, 3, 8, 8))
    patch.adopt(images)
    assert images[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(images(torch.ones(2, 3, 8, 8)), expected, atol=1e-6)
    assert patch.proof().says == "1 weights and 1 inputs are in channels-last order"
    flat.adopt(net())
    assert not flat.proof().applied


def test_nothing_compiled_is_not_applied() -> None:
    assert module_patches.Compile().proof() == patches.Proof(
        False, "the program calls no module with parameters"
    )


# --- results and side effects ----------------------------------------------------------------------------------


def test_losses_gradient_norms_and_outputs_are_read_and_then_all_is_taken_out() -> None:
    watch, model = ResultsWatch(2), net()
    backward = torch.autograd.backward
    watch.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        with watch.call(model) as told:
            out = model(torch.ones(3, 4))
            told(out)
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
    norm = torch.linalg.vector_norm(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert watch.losses == pytest.approx([float(loss.detach())] * 2)
    assert watch.gradient_norms == pytest.approx([float(norm)] * 2)
    assert watch.outputs == pytest.approx([float(out.detach().norm())] * 2)
    assert (watch.draws_in_model, watch.draws_in_data, watch.problem) == (False, False, "")
    watch.remove()
    assert torch.autograd.backward is backward


def test_random_numbers_are_seen_in_the_model_and_in_the_data() -> None:
    class Noisy(Numbers):
        def __getitem__(self, place: int) -> float:
            return float(torch.rand(()))

    for dataset, drawn in ((Numbers(), False), (Noisy(), True)):
        watch = ResultsWatch(5)
        watch.install()
        list(torch.utils.data.DataLoader(dataset, shuffle=True))
        watch.remove()
        assert watch.draws_in_data is drawn
    watch, model = ResultsWatch(5), net(dropout=torch.nn.Dropout(0.5))
    watch.install()
    with watch.call(model) as told:
        told(model(torch.ones(3, 4)))
    watch.remove()
    assert watch.draws_in_model


def test_saves_go_to_the_scratch_folder_and_other_writes_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, own = tmp_path / "scratch", tmp_path / "own"
    scratch.mkdir()
    own.mkdir()
    monkeypatch.setattr("foretrace.capture.side_effects.tempfile.gettempdir", lambda: str(scratch))
    effects = SideEffects(str(scratch))
    effects.install()
    torch.save({"step": 1}, own / "last.pt")
    (own / "log.csv").write_text("loss\n")
    (scratch / "fine.txt").write_text("")
    os.listdir(own)
    effects.end()
    (own / "later.csv").write_text("")
    assert not (own / "last.pt").exists()
    assert (scratch / "last.pt").is_file()
    told = {"written": ["log.csv"], "redirected": ["last.pt"], "connected": []}
    assert effects.to_dict() == {**told, "problems": []}


def test_what_could_not_be_looked_at_is_said_and_the_program_goes_on(tmp_path: Path) -> None:
    effects = SideEffects(str(tmp_path))
    effects._audit("open", ("only a path",))
    (problem,) = effects.to_dict()["problems"]
    assert "TypeError" in problem
