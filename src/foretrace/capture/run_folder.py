"""The Run: a folder with everything that recording one program left behind.

    RUN/run.json          how the program was started, where, with which options, and how it ended
    RUN/rank0/rank.json   what this rank measured, and which recordings it made
    RUN/rank0/*.json      the recordings themselves; *.pickle: snapshots of CUDA's allocator

Nothing is locked, so a shared file system is enough: run.json has one writer, and a rank writes into its own
folder only. Files appear by a rename, so each of them is whole or absent, however a rank ended.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from foretrace.capture import known_secrets
from foretrace.capture.masking import mask_in_file
from foretrace.capture.secret_shapes import without_issued_in, without_secrets
from foretrace.errors import InputError, UsageError
from foretrace.whole_files import replacing

SCHEMA = 1
RUN_FILE, RANK_FILE = "run.json", "rank.json"
DEFAULT_PARENT = "foretrace-runs"

_RANK_FOLDER = re.compile(r"rank(\d+)")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class RankRecord:
    """What one rank left: its facts, or the problem that there are none."""

    rank: int
    folder: Path
    facts: Mapping[str, Any]
    problem: str | None = None

    def recording(self, kind: str) -> Path | None:
        """The file of the last pass of a kind that was written, and is still there."""
        return next(reversed(self.recordings(kind)), None)

    def recordings(self, kind: str | None = None) -> list[Path]:
        """The files of all passes, or of those of a kind, that are still there."""
        passes = self.facts.get("passes")
        named = [
            each["file"]
            for each in (passes if isinstance(passes, list) else ())
            if isinstance(each, dict)
            and kind in (None, each.get("kind"))
            and isinstance(each.get("file"), str)
        ]
        # Only the name: a folder that someone sent must not point outside itself.
        return [path for path in (self.folder / Path(name).name for name in named) if path.is_file()]

    def snapshots_at_failure(self) -> list[Path]:
        """The snapshot that was written when memory ran out, if that happened and it is still there."""
        failed = self.facts.get("out_of_memory")
        name = failed.get("file") if isinstance(failed, dict) else None
        return (
            [path for path in [self.folder / Path(name).name] if path.is_file()]
            if isinstance(name, str)
            else []
        )


@dataclass(frozen=True)
class Run:
    """A Run as read: what is there, and in words what is missing."""

    path: Path
    facts: Mapping[str, Any]
    ranks: tuple[RankRecord, ...]
    problems: tuple[str, ...]

    def rank(self, number: int) -> RankRecord | None:
        """The record of one rank; None if it left nothing at all."""
        return next((rank for rank in self.ranks if rank.rank == number), None)


class RunFolder:
    """Where a Run is written; many processes may write their ranks into the same one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self._masked: frozenset[str] = frozenset()  # the secrets that recordings so far do not hold

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def default(cls, command: Sequence[str], *, parent: str | Path = DEFAULT_PARENT) -> RunFolder:
        """A folder that does not exist yet: foretrace-runs/<script>-<date>-<time>."""
        return cls(_unused(Path(parent) / f"{script_name(command)}-{time.strftime('%Y%m%d-%H%M%S')}"))

    @classmethod
    def of_job(cls, command: Sequence[str], *, parent: str | Path = DEFAULT_PARENT) -> RunFolder:
        """The folder that every rank of this job names alike, without a word between them."""
        return cls(Path(parent) / f"{script_name(command)}-{_job_name(os.environ)}")

    def create(self, *, join: bool = False) -> RunFolder:
        """Makes the folder, refusing one that holds anything; with `join`, other ranks may have made it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            taken = not join and any(self.path.iterdir())
        except OSError as error:
            raise UsageError(
                f"cannot write a Run to {self.path}: {error.strerror}; choose another folder"
            ) from error
        if taken:
            raise UsageError(f"will not overwrite {self.path}: choose another folder, or remove this one")
        return self

    def rank_folder(self, rank: int) -> Path:
        """The folder of one rank, made if need be."""
        if rank < 0:
            raise UsageError(f"a rank is 0 or more, not {rank}")
        folder = self.path / f"rank{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_run(self, facts: Mapping[str, Any]) -> Path:
        """Writes run.json, in place of an earlier one."""
        try:
            return write_json(self.path / RUN_FILE, {"schema": SCHEMA, **facts})
        except OSError as error:
            raise UsageError(f"cannot write {self.path / RUN_FILE}: {error.strerror or error}") from error

    def write_rank(self, rank: int, facts: Mapping[str, Any]) -> Path:
        """Writes a rank's rank.json, in place of an earlier one."""
        self._mask_new_secrets(RankRecord(rank, self.rank_folder(rank), facts))
        return write_json(self.rank_folder(rank) / RANK_FILE, {"schema": SCHEMA, "rank": rank, **facts})

    def _mask_new_secrets(self, record: RankRecord) -> None:
        """Recordings are masked before they get their names: here, what the program made a secret since then."""
        secrets = known_secrets.values()
        if new := secrets - self._masked:
            for path in (*record.recordings(), *record.snapshots_at_failure()):
                mask_in_file(path, new, formats=False)
        self._masked = secrets

    @staticmethod
    def is_run(path: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a Run, complete or not."""
        folder = Path(path)
        return folder.is_dir() and ((folder / RUN_FILE).is_file() or any(folder.glob(f"rank*/{RANK_FILE}")))

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Run:
        """The Run in a folder. What ranks that died left out is among its problems, never an error."""
        folder = Path(path)
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; a Run is the folder that `foretrace run` wrote")
        facts, problem = _read_json(folder / RUN_FILE)
        ranks = tuple(_read_rank(number, rank_folder) for number, rank_folder in _rank_folders(folder))
        if not facts and not ranks:
            raise InputError(f"{folder}: not a Run: {problem}, and there is no folder of a rank")
        problems = [problem, *(rank.problem for rank in ranks), *_absent(facts, ranks)]
        return Run(folder, facts, ranks, tuple(each for each in problems if each))


def script_name(command: Sequence[str]) -> str:
    """What to call a Run of this command: the program's own name, not the interpreter's or the launcher's."""
    name, of_python = _program(command)
    name = known_secrets.without_values(name)
    cleaned = without_issued_in(name) if of_python else str(without_secrets(name))
    return _NOT_IN_NAMES.sub("-", cleaned).strip("-.")[:_NAME_CHARACTERS] or "program"


def _program(command: Sequence[str]) -> tuple[str, bool]:
    """The program's name, and whether it is that of a Python file or module."""
    words = iter(command)
    name = Path(next(words, "")).name
    for word in words:
        if word in ("-m", "-c"):
            # `python -c` has no name; `torchrun` and `python -m torch.distributed.run` start another program.
            following = next(words, "")
            if word == "-c":
                break
            if following.startswith("torch.distributed"):
                continue
            return following.removesuffix(".__main__").rpartition(".")[2], True
        if word.endswith(".py"):
            return Path(word).stem, True
    return name.removesuffix(".py"), name.endswith(".py")


def write_json(path: Path, facts: Mapping[str, Any]) -> Path:
    """Writes facts as one JSON file, whole or not at all; what looks like a secret is left out first."""
    plain = known_secrets.without_values(_plain(facts))
    text = json.dumps(without_secrets(plain), indent=2, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return path


def _plain(value: object) -> Any:
    """The value as JSON can hold it; numbers that are none become null."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a number of the program's own, which may have no numpy
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [_plain(each) for each in value]
    return str(value)


def _read_json(path: Path) -> tuple[dict[str, Any], str | None]:
    """A JSON object, or an empty one and the reason."""
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is damaged"
    if not isinstance(facts, dict):
        return {}, f"{path.name} is damaged"
    schema = facts.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        return facts, f"{path.name} was written by a newer Foretrace: some of it may not be understood"
    return facts, None


def _rank_folders(folder: Path) -> list[tuple[int, Path]]:
    named = ((_RANK_FOLDER.fullmatch(each.name), each) for each in folder.iterdir())
    return sorted((int(match[1]), each) for match, each in named if match and each.is_dir())


def _read_rank(number: int, folder: Path) -> RankRecord:
    facts, problem = _read_json(folder / RANK_FILE)
    if problem:
        return RankRecord(number, folder, facts, f"rank {number}: {problem}; it may have died")
    status = facts.get("status")
    if status == "complete":
        return RankRecord(number, folder, facts)
    reason = facts.get("reason")
    says = f"rank {number}: {status or 'partial'}" + (f" ({reason})" if reason else "")
    return RankRecord(number, folder, facts, says)


def _absent(facts: Mapping[str, Any], ranks: Sequence[RankRecord]) -> list[str]:
    """The ranks that should be there, by the world's size and the ranks chosen, and are not."""
    if not ranks:
        return ["no rank left anything: the program ended before its first step, or never imported torch"]
    sizes = [rank.facts.get("world_size") for rank in ranks]
    world_size = max((size for size in sizes if isinstance(size, int)), default=0)
    options = facts.get("options")
    chosen = options.get("ranks") if isinstance(options, dict) else None
    expected: Sequence[int] = range(world_size)
    if isinstance(chosen, list):
        expected = [
            rank for rank in chosen if isinstance(rank, int) and (rank < world_size or not world_size)
        ]
    present = {rank.rank for rank in ranks}
    missing = [rank for rank in expected if rank not in present]
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return [f"rank {shown}: left nothing; died early, or wrote elsewhere"]


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _job_name(environ: Mapping[str, str]) -> str:
    """Made of what all ranks of a job share: the scheduler's id, torchrun's id, or the process that started them."""
    if job := environ.get("SLURM_JOB_ID"):
        return _NOT_IN_NAMES.sub("-", f"job{job}.{environ.get('SLURM_STEP_ID', '0')}")
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        # torchrun makes up a UUID where it is given no id: its first part tells jobs apart well enough.
        name = elastic[:8] if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]+){4}", elastic) else elastic[:40]
        return _NOT_IN_NAMES.sub("-", f"{name}.{restart}")
    started_at = _parent_started_at()
    if started_at is None:
        return f"job{os.getppid()}"
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(started_at)) + f"-{os.getppid()}"


def _parent_started_at() -> float | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii", errors="replace")
        boot = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(encoding="ascii"), re.MULTILINE)
        ticks = int(stat.rpartition(")")[2].split()[19])  # field 22, counted behind the name
    except (OSError, ValueError, IndexError):
        return None
    return int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK") if boot else None
