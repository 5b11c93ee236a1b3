"""Make the changes that need no edit, in a program as it is, and measure what each brings."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _input, _output
from foretrace.errors import MissingDataError, UsageError
from foretrace.units import visible
from foretrace.urls import here

if TYPE_CHECKING:
    from foretrace.trial.candidates import Proposal
    from foretrace.trial.report import Report

_LEAST_BLOCKS = 5  # of fewer, no test can tell a difference from chance
_EXAMPLES = """\
examples:
  foretrace try -- python train.py
  foretrace try --numerics --budget 600 -- python train.py --epochs 1
  foretrace try --from foretrace-runs/train-20260101-120000 -- python train.py
  foretrace try --dry-run -- python train.py

Each variant runs in a process of its own, in turn with the program as it is, and is ended after the measured steps. No source
is edited. The program runs in a scratch folder of links to its own; what it saves goes there. The same command with the same
-o goes on where it stopped. Exit codes: 0 done, 2 usage, 4 no steps were found, or the program as it is fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options, and the command after them."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "foretrace try [options] -- COMMAND [ARGUMENT ...]"
    parser.epilog = _EXAMPLES
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program to try")
    _add_what(parser.add_argument_group("what is tried"))
    _add_how(parser.add_argument_group("how it is measured"))
    _add_output(parser)


def _add_what(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--from",
        dest="source",
        type=here,
        metavar="RUN",
        help="a recording of the same program, in place of one made now",
    )
    what.add_argument(
        "--numerics",
        action="store_true",
        help="try what changes the numbers too: torch.compile, TF32, channels-last, bf16 autocast",
    )
    what.add_argument(
        "--also",
        metavar="NAME",
        action="append",
        default=[],
        help="try this change too, whatever was found: NAME, NAME=NUMBER, or A+B for both together; more than once",
    )
    what.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="try this change alone; more than once"
    )
    what.add_argument("--dry-run", action="store_true", help="say what would be tried, and how, and stop")


def _add_how(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="start no process that would end later"
    )
    how.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="SECONDS", help="for each process (default: 300)"
    )
    how.add_argument(
        "--memory",
        type=_gibibytes,
        metavar="GIB",
        help="of the host, for each variant; one that takes more is ended",
    )
    how.add_argument(
        "--gpu-memory", type=_share, metavar="SHARE", help="of the GPU, for each variant: 0 to 1"
    )
    how.add_argument(
        "--settle",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="steps that are let by first (default: 1 s of them)",
    )
    how.add_argument(
        "--blocks", type=int, default=10, metavar="N", help="blocks of steps that are timed (default: 10)"
    )
    how.add_argument(
        "--base-every",
        type=int,
        default=1,
        metavar="N",
        help="changes between two runs of the program as it is (default: 1; 0: only at the beginning)",
    )
    how.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="processes for each change (default: 1, and up to 3 where these leave open whether it is faster)",
    )
    how.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of torch, NumPy and random (default: 0)"
    )
    how.add_argument("--step-function", metavar="MODULE:NAME", help="the function that makes a step")
    how.add_argument(
        "--in-place", action="store_true", help="run in the program's own folder, not in a scratch folder"
    )
    how.add_argument(
        "--no-together", action="store_true", help="do not measure the changes that are faster together"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=here,
        metavar="FOLDER",
        help="what was measured (default: foretrace-runs/try-NAME-DATE)",
    )
    parser.add_argument(
        "--ledger",
        type=here,
        metavar="FILE",
        help="where predictions are kept beside what was measured (default: .foretrace/ledger.jsonl)",
    )
    _output.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Records, proposes, tries and prints."""
    from foretrace.commands.run import program_of
    from foretrace.trial import ledger, report, verification
    from foretrace.trial.sweep import Sweep, shown

    command = program_of(args.command)
    folder = (args.output or _default_folder(command)).resolve()
    if args.dry_run:
        _print_plan(args, _proposals(args, args.source))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    source = args.source or (None if args.only else _record(command, folder, args))
    proposals = _proposals(args, source)
    if not proposals:
        raise MissingDataError(_NOTHING)
    _say(
        f"tries {', '.join(proposal.name for proposal in proposals)}; what is measured goes to {_shown(folder)}"
    )
    swept = Sweep(command, proposals, _settings(args), folder, say=_say).run()
    program = shlex.join(shown(command))
    device = verification.device_of(_input.open_case(source, no_cache=False)) if source else ""
    made = report.make(program, proposals, swept, seed=args.seed, recorded_on=device)
    with _output.told(_say):
        ledger.add(args.ledger or ledger.DEFAULT, ledger.from_report(made))
    print_report(made, args.format)
    return 0


_NOTHING = (
    "nothing was found that can be tried without an edit; --numerics tries what changes the numbers too, --also NAME a change "
    "whatever was found, and --dry-run lists them all"
)


def _proposals(args: argparse.Namespace, source: Path | None) -> list[Proposal]:
    """What is tried, cheapest first."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnose
    from foretrace.trial import candidates

    names = list(dict.fromkeys([*args.only, *args.also]))
    for part in "+".join(names).split("+") if names else ():
        candidates.find(part.partition("=")[0])
    case = diagnosis = None
    if source is not None:
        case = _input.open_case(source, no_cache=False)
        try:
            case.require_replay()
            diagnosis = diagnose(case, RULES)
        except MissingDataError as reason:
            _say(f"no finding: {reason}")
    proposals = candidates.propose(diagnosis, case, numerics=args.numerics or bool(args.only), also=names)
    if args.only:
        plain = ["+".join(part.partition("=")[0] for part in name.split("+")) for name in names]
        return [proposal for proposal in proposals if proposal.name in plain]
    if diagnosis is not None and (others := candidates.left_out(diagnosis, proposals)) and not args.numerics:
        _say(f"--numerics would also try {', '.join(candidate.name for candidate in others)}")
    return proposals


def _settings(args: argparse.Namespace) -> Any:
    from foretrace.capture.trial_options import TrialOptions
    from foretrace.trial.process import Limits
    from foretrace.trial.sweep import Settings

    if args.blocks < _LEAST_BLOCKS or args.base_every < 0 or args.rounds < 1:
        raise UsageError(
            f"--blocks is at least {_LEAST_BLOCKS}, --base-every at least 0, and --rounds at least 1"
        )
    options = TrialOptions(
        output="",
        seed=args.seed,
        settle_s=args.settle,
        blocks=args.blocks,
        gpu_memory_share=args.gpu_memory,
        step_function=args.step_function,
    )
    limits = Limits(args.timeout, args.memory)
    return Settings(
        options,
        limits,
        args.budget,
        args.base_every,
        args.rounds,
        in_place=args.in_place,
        together=not args.no_together,
    )


def _record(command: list[str], folder: Path, args: argparse.Namespace) -> Path:
    """The program as it is, recorded once, for the diagnosis; one that is there from before is taken."""
    from foretrace.trial import recording

    target = folder / "run"
    if not target.exists():
        _say("records the program first, to know what to try")
    return recording.record(
        command, target, step_function=args.step_function, in_place=args.in_place, timeout_s=args.timeout
    )


def _default_folder(command: list[str]) -> Path:
    from foretrace.capture.run_folder import RunFolder

    usual = RunFolder.default(command).path
    return usual.with_name(f"try-{usual.name}")


def print_report(made: Report, form: str) -> None:
    """Prints what was tried."""
    from foretrace.present.text import tables, terminal, trials

    if form == "json":
        _output.print_document(tables.document_to_json(made.to_dict()))
    elif form == "csv":
        _output.print_text(tables.to_csv(trials.frame(made)))
    elif form == "md":
        _output.print_text(trials.to_markdown(made))
    else:
        terminal.show_lines(lambda width: trials.lines(made, width))


def _print_plan(args: argparse.Namespace, proposals: list[Proposal]) -> None:
    """What would be patched."""
    from foretrace.present.text import terminal
    from foretrace.trial import candidates

    if args.source is None and not args.only:
        _say(
            "nothing is recorded in a dry run: these are all changes that a diagnosis may suggest (--from RUN names those it does)"
        )
        known = [candidate for candidate in candidates.CANDIDATES if args.numerics or not candidate.numerics]
        proposals = candidates.propose(
            None, None, numerics=args.numerics, also=[candidate.name for candidate in known]
        )
    terminal.show_names([(proposal.name, f"{proposal.says}: {proposal.line}") for proposal in proposals])


def _seconds(text: str) -> float:
    return _number(text, 0.0, 1e7, "a time in seconds")


def _share(text: str) -> float:
    return _number(text, 0.0, 1.0, "a share from 0 to 1")


def _gibibytes(text: str) -> int:
    return round(_number(text, 0.0, 1e6, "an amount in GiB") * 2**30)


def _number(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least < value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say(text: str) -> None:
    print(f"foretrace: {visible(' '.join(text.split()))}", file=sys.stderr, flush=True)
