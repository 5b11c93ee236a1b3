"""Where a finding is in the source at hand, how sure that is, and the patch that marks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from foretrace.diagnose import RULES
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.rules.copies import pageable_copy
from foretrace.diagnose.rules.host import input_bound
from foretrace.diagnose.rules.precision import no_tensor_cores
from foretrace.present.agent import code_edits
from foretrace.present.agent.patches import confidence, patch, source_of

PROGRAM = """import torch


@torch.no_grad()
def other(x):
    return x.sum()


def step(x):
    y = x * 2
    if y.max().item() > 1:
        y = y / 2
    return y
"""


def finding(place: Place) -> Finding:
    fix = Fix("Keep it on the device.", "y = torch.where(y.max() > 1, y / 2, y)\n# not .item()")
    return Finding(says="", why="", fix=fix, evidence={}, where=(place,), rule="host-sync")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place("train.py", 11, "step"), "high"),
        (Place("train.py", 9, "step"), "high"),
        (Place("train.py", 4, "other"), "high"),
        (Place("train.py", 11, "forward"), "low"),
        (Place("train.py", 6, "step"), "low"),
        (Place("train.py", 400, "step"), "low"),
        (Place("model.py", 11, "step"), "medium"),
        (Place(None, None, "aten::item"), "none"),
    ],
)
def test_confidence_is_what_the_source_at_hand_says(folder: Path, place: Place, expected: str) -> None:
    assert confidence(place, source_of(place, [folder])) == expected


def apply(text: str, folder: Path) -> None:
    """Applies a patch as an agent would, in the folder that it is for."""
    for arguments in (["--check"], []):
        done = subprocess.run(
            ["git", "apply", *arguments, "-"],
            input=text,
            cwd=folder,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (done.stderr, text)


def test_a_patch_of_comments_applies_and_changes_nothing_that_runs(folder: Path) -> None:
    place = Place("train.py", 11, "step")
    made = patch(finding(place), [source_of(place, [folder])])
    assert made is not None
    assert (made.kind, made.folder) == ("comment", folder.resolve())
    apply(made.text, folder)
    changed = (folder / "train.py").read_text().splitlines()
    assert changed[10:13] == [
        "    # host-sync: Keep it on the device.",
        "    #   y = torch.where(y.max() > 1, y / 2, y)",
        "    #   # not .item()",
    ]
    assert [line for line in changed if "#" not in line] == PROGRAM.splitlines()


def test_a_place_that_is_not_sure_gets_no_patch(folder: Path) -> None:
    place = Place("train.py", 11, "forward")
    assert patch(finding(place), [source_of(place, [folder])]) is None


LOADER = Fix("Load in worker processes, ahead of the step.", input_bound._loader(4, pinned=True))
FUSED = Fix("", "optimizer = torch.optim.AdamW(params, ..., fused=True)   # other arguments as they are")
LOGGED = Fix(
    "Keep the value on the device, and read it where it is printed.",
    "total += loss.detach()   # a tensor, not: total += loss.item()\nif step % 100 == 0: print(total.item())",
)
WAITED = Fix(
    "Leave the synchronize out: torch waits by itself where the host needs a value.",
    "# torch.cuda.synchronize() belongs around what is timed, not into every step",
)
ZEROED = Fix(
    "Free gradients instead of zeroing them.", "optimizer.zero_grad(set_to_none=True)   # the default"
)
COPIED = Fix("Leave the call out.", "y = x.transpose(1, 2) @ w  # not x.transpose(1, 2).contiguous() @ w")
TF32 = no_tensor_cores._TF32
# rule, fix, the line that the finding is at, and what becomes of it: line by line, or None where no edit is made
EDITS: list[tuple[str, Fix, str, str, str | None]] = [
    ("input-bound", LOADER, "loader = DataLoader(data, 8)\nfor x in loader: pass",  "for",
     "loader = DataLoader(data, 8, num_workers=4, persistent_workers=True, pin_memory=True, prefetch_factor=4)\n"
     "for x in loader: pass"),
    ("input-bound", LOADER, "loader = torch.utils.data.DataLoader(\n    data,\n    num_workers=0,  # none\n    shuffle=True,\n)\nuse(loader)", "use",
     "loader = torch.utils.data.DataLoader(\n    data,\n    num_workers=4,  # none\n    shuffle=True, persistent_workers=True, pin_memory=True, prefetch_factor=4,\n)\nuse(loader)"),
    ("input-bound", LOADER, "a, b = DataLoader(data), DataLoader(other)", "a, b", None),
    ("input-bound", LOADER, "loader = DataLoader(data, **options)", "loader", None),
    ("input-bound", LOADER, "loader = DataLoader(data, num_workers=count)", "loader", None),
    ("input-bound", LOADER, "loader = DataLoader(data, (8))", "loader", None),
    ("input-bound", LOADER, "loader = DataLoader(data, 8  # eight\n)", "loader", None),
    ("input-bound", Fix("", 'cProfile.run("for i in range(100): loader.dataset[i]")'), "loader = DataLoader(data)", "loader", None),
    ("pageable-copy", pageable_copy._TO_DEVICE, "loader = DataLoader(data)\nfor x in loader:\n    x = x.to(device)\n", "    x =",
     "loader = DataLoader(data, pin_memory=True)\nfor x in loader:\n    x = x.to(device, non_blocking=True)\n"),
    ("pageable-copy", pageable_copy._TO_DEVICE, "for x in batches:\n    x = x.to(device)\n", "    x =", None),
    ("pageable-copy", pageable_copy._PREFETCHED, "loader = DataLoader(data)\nx = x.to(device)\n", "x =", None),
    ("loop-optimizer", FUSED, "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\nstep()", "step",
     "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\nstep()"),
    ("loop-optimizer", FUSED, "optimizer = AdamW(model.parameters(), foreach=True)\n", "optimizer", None),
    ("loop-optimizer", FUSED, "optimizer = SGD(model.parameters())\n", "optimizer", None),
    ("zeroed-gradients", ZEROED, "optimizer.zero_grad(set_to_none=False)\n", "optimizer", "optimizer.zero_grad(set_to_none=True)\n"),
    ("zeroed-gradients", ZEROED, "for p in ps:\n    p.grad.zero_()\n", "    p", None),
    ("host-sync", LOGGED, "for x in xs:\n    total += step(x).item()  # µs\n", "    total", "for x in xs:\n    total += step(x).detach()  # µs\n"),
    ("host-sync", LOGGED, "total += 'µµ' and f(x) .item()\n", "total", None),
    ("host-sync", LOGGED, "total -= loss.item()\n", "total", None),
    ("host-sync", LOGGED, "losses.append(loss.item())\n", "losses", None),
    ("host-sync", WAITED, "loss.backward()\ntorch.cuda.synchronize()\nstep()\n", "torch.c", "loss.backward()\nstep()\n"),
    ("host-sync", WAITED, "if timed:\n    torch.cuda.synchronize()\n", "    torch.c", "if timed:\n    pass\n"),
    ("host-sync", WAITED, "torch.cuda.synchronize(); step()\n", "torch.c", None),
    ("redundant-copies", COPIED, "y = x.transpose(1, 2).contiguous() @ w\n", "y", "y = x.transpose(1, 2) @ w\n"),
    ("redundant-copies", COPIED, "y = x.contiguous() @ w.contiguous()\n", "y", None),
    ("redundant-copies", COPIED, "y = f'{x.contiguous()}'\n", "y", None),
    ("no-tensor-cores", TF32, '"""A program."""\n\nimport torch\nfrom torch import nn\n\ny = nn.Linear(2, 2)\n', "y",
     '"""A program."""\n\nimport torch\nfrom torch import nn\n\ntorch.set_float32_matmul_precision("high")\n\ny = nn.Linear(2, 2)\n'),
    ("no-tensor-cores", TF32, "from torch import nn\ny = nn.Linear(2, 2)\n", "y", None),
    ("no-tensor-cores", TF32, "import torch\ntorch.backends.cuda.matmul.allow_tf32 = flag\ny = 1\n", "y", None),
    ("launch-bound", Fix("", "x = 1"), "x = 2\n", "x", None),
]  # fmt: skip


@pytest.mark.slow
def test_a_fix_of_one_call_is_made_and_anything_else_is_a_comment(tmp_path: Path) -> None:
    """Every patch applies; what it makes of the file is what somebody would have typed, or the fix as a comment."""
    for rule, fix, program, at, expected in EDITS:
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        line = next(number for number, text in enumerate(program.split("\n"), 1) if text.startswith(at))
        place = Place("train.py", line, "<module>")
        about = Finding(says="", why="", fix=fix, evidence={}, where=(place,), rule=rule)
        made = patch(about, [source_of(place, [tmp_path])])
        assert made is not None, program
        assert made.kind == ("comment" if expected is None else "edit"), (program, made.text)
        apply(made.text, tmp_path)
        changed = (tmp_path / "train.py").read_text(encoding="utf-8")
        if expected is None:
            kept = [
                each for each in changed.split("\n") if not each.lstrip().startswith(("#   ", f"# {rule}"))
            ]
            assert "\n".join(kept) == program
        else:
            assert changed == expected


def test_every_rule_whose_fix_is_made_exists() -> None:
    assert set(code_edits.RULES) <= {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "def step(x):\n\treturn x.item()\n"),
        ("train.py", "def step(x):\r\n    return x.item()\r\n"),
        ("train.py", f"def step(x):\n    return x.item()  # {'x' * 5_000}\n"),
        ("train.py", "def step(x):\n    return x.item()  # \u202e\n"),
        ("a b.py", "def step(x):\n    return x.item()\n"),
    ],
    ids=["tabs", "ends of lines", "too long", "hidden characters", "name"],
)
def test_a_patch_that_an_answer_could_not_show_as_it_is_is_none(tmp_path: Path, name: str, text: str) -> None:
    """An answer spells such characters out, and cuts: what is left would not apply."""
    (tmp_path / name).write_bytes(text.encode())
    place = Place(name, 2, "step")
    source = source_of(place, [tmp_path])
    assert confidence(place, source) == "high"
    assert patch(finding(place), [source]) is None


def test_a_patch_of_a_file_without_a_last_end_of_line_applies(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def step(x):\n    total += x.item()")
    place = Place(str(tmp_path / "train.py"), 2, "step")
    about = Finding(says="", why="", fix=LOGGED, evidence={}, where=(place,), rule="host-sync")
    made = patch(about, [source_of(place, [tmp_path])])
    assert made is not None
    apply(made.text, tmp_path)
    assert (tmp_path / "train.py").read_text() == "def step(x):\n    total += x.detach()"


def test_a_recording_cannot_name_any_file_of_the_machine(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.py"
    outside.write_text("password = 1\n")
    (folder / "link.py").symlink_to(outside)
    for name in (
        str(outside),
        f"../{outside.parent.name}/secret.py",
        "link.py",
        "a\x00.py",
        "x" * 5_000 + ".py",
    ):
        assert source_of(Place(name, 1, "<module>"), [folder]) is None
