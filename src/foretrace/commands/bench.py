"""Time functions of your own, products, attention, a transformer or collectives, honestly."""

from __future__ import annotations

import argparse
import inspect
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _output
from foretrace.errors import ForetraceError, UsageError, unknown
from foretrace.units import visible
from foretrace.urls import here

if TYPE_CHECKING:
    from foretrace.bench import Benchmark, Timing
    from foretrace.bench.timing import How

_EPILOG = """\
examples:
  foretrace bench kernels.py::fused kernels.py::eager
  foretrace bench matmul --shape 4096x4096x4096,4096x4096x4095 --precision bf16
  foretrace bench transformer --size small,medium --mode train --precision fp32,bf16
  foretrace bench KIND --help          the options of one kind

A case that runs out of memory or fails is a row that says so, and the next one goes on. The exit code is 1 if none was timed.
`-o out.json` keeps every sample. More: docs/guide/bench.md
"""
_ENDINGS = (".json", ".csv", ".md")
_NOT_OPTIONS = ("timing", "progress", "targets")
_PREFIX = "option:"
_FUNCTION = "::"
_HELP = {
    "shape": "sizes MxNxK of the product of an M by K and a K by N matrix, or N for a square",
    "precision": "fp32, tf32, bf16, fp16",
    "size": "small, medium, large, xl, 2.7B, 10B, or d_model x d_ff x layers x heads: 256x1024x4x4",
    "ctx": "tokens of a sequence",
    "batch": "sequences",
    "mode": "fwd (keeps what a backward pass needs), fwd_bwd, train (with AdamW)",
    "attention": "naive, sdpa (torch chooses), math, flash, efficient, cudnn",
    "compile": "under torch.compile",
    "impl": "naive, sdpa (torch chooses), math, flash, efficient, cudnn",
    "d_model": "widths of the head",
    "seq_len": "lengths of the sequence",
    "causal": "each token sees those before it",
    "op": "all_reduce, all_gather, reduce_scatter, broadcast",
    "mib": "sizes of the whole tensor in MiB",
    "ranks": "numbers of processes",
    "backend": "gloo (CPU), nccl (a GPU for each rank), or auto",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """What to time, how, and the options of the chosen kind; of all kinds where none is chosen yet."""
    kinds = _kinds()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "foretrace bench KIND [options], or foretrace bench FILE.py::function ... [options]"
    parser.epilog = _EPILOG
    given: Sequence[str] = getattr(parser, "arguments", ())
    parser.set_defaults(command_line=shlex.join(("foretrace", "bench", *given)))
    wanted = next((word for word in given if word in kinds), None)
    known = f"{', '.join(kinds)}, or functions of your own as FILE.py::function"
    parser.add_argument("target", nargs="+", metavar="KIND", help=known)
    if not any(_FUNCTION in word for word in given):
        _add_options(parser, {wanted: kinds[wanted]} if wanted else kinds)
    _add_timing(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=_output.FORMATS, default="table", help="default: table")
    output.add_argument(
        "-o", "--output", metavar="FILE", type=here, help="also write FILE: .json (all samples), .csv or .md"
    )
    output.add_argument(
        "--svg", metavar="FILE", type=here, help="also draw the medians and their intervals into FILE"
    )
    _output.add_columns(output)
    output.add_argument("--plot", action="store_true", help="with the table, a bar per row")
    output.add_argument("--force", action="store_true", help="overwrite existing files")
    output.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def run(args: argparse.Namespace) -> int:
    """Runs the sweep, prints and writes it."""
    if args.output:
        _output.check_file(args.output, force=args.force, endings=_ENDINGS, such_as=".json, .csv or .md")
    if args.svg:
        _output.check_file(args.svg, force=args.force, endings=(".svg",), such_as=".svg")
    benchmark = _without_secrets(replace(_sweep(args), command=args.command_line))
    if args.output:
        _write(args.output, _text(benchmark, args.output.suffix.lower().lstrip(".")))
    if args.svg:
        from foretrace.present.export.bench_plot import to_svg

        _write(args.svg, to_svg(benchmark))
    if args.format == "table":
        _print_table(benchmark, plot=args.plot, columns=args.columns)
    elif args.format == "json":
        _output.print_document(_text(benchmark, args.format))
    else:
        _output.print_text(_text(benchmark, args.format))
    if not any(row["status"] == "OK" for row in benchmark.rows):
        raise ForetraceError(f"nothing could be timed: {benchmark.rows[0]['reason']}")
    return 0


def _without_secrets(benchmark: Benchmark) -> Benchmark:
    """The same without secrets, which a command line may hold, and the reason why a case failed."""
    from foretrace.capture.known_secrets import masked

    texts = {name: masked(getattr(benchmark, name)) for name in ("command", "rows", "notes")}
    return replace(benchmark, **{**texts, "rows": tuple(texts["rows"]), "notes": tuple(texts["notes"])})


def _sweep(args: argparse.Namespace) -> Benchmark:
    from foretrace.bench.sweep import import_torch

    kinds = _kinds()
    first = args.target[0]
    progress = None if args.quiet else _say
    if any(_FUNCTION in target for target in args.target):
        from foretrace.bench import functions

        import_torch()
        return functions(*args.target, timing=_timing(args), progress=progress)
    if first not in kinds:
        raise unknown(
            f"nothing to time named {first!r}", first, [*kinds, "FILE.py::function"], listed="there are"
        )
    if len(args.target) > 1:
        raise UsageError(f"one kind at a time: {first}, not {' '.join(args.target)}")
    import_torch()
    options = {
        name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)
    }
    foreign = set(options) - set(_options(kinds[first]))
    if foreign:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(foreign))
        raise UsageError(f"{first} has no option {flags} (see foretrace bench {first} --help)")
    timing = _timing(args, usual="single" if first == "latency" else "back-to-back")
    made: Benchmark = kinds[first](**options, timing=timing, progress=progress)
    return made


def _kinds() -> dict[str, Callable[..., Benchmark]]:
    """The kinds that are chosen by name, in the order of the documentation."""
    from foretrace.bench.kinds import KINDS

    return {name: getattr(module, name) for name, module in KINDS.items() if name != "functions"}


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in _NOT_OPTIONS}


def _add_options(parser: argparse.ArgumentParser, kinds: dict[str, Callable[..., Any]]) -> None:
    """The flags of these kinds, each once."""
    added: set[str] = set()
    for kind, function in kinds.items():
        group = parser.add_argument_group(kind)
        hints = typing.get_type_hints(function)
        for name, parameter in _options(function).items():
            if name in added:
                continue
            added.add(name)
            flag: dict[str, Any] = {"dest": f"{_PREFIX}{name}", "default": argparse.SUPPRESS}
            flag["help"] = f"{_HELP[name]} (default: {_shown(parameter.default)})".replace("%", "%%")
            hint = _without_none(hints[name])
            if hint is bool:
                flag["action"] = argparse.BooleanOptionalAction
            elif typing.get_origin(hint) is not None:
                flag |= {"type": _listed(typing.get_args(hint)[0]), "metavar": "A,B,..."}
            else:
                flag |= {"type": hint, "metavar": "N" if hint is int else "NAME"}
            group.add_argument(f"--{name.replace('_', '-')}", **flag)


def _without_none(hint: Any) -> Any:
    inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return inner[0] if len(inner) == 1 and type(None) in typing.get_args(hint) else hint


def _listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """What parses values with commas between them."""

    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part.strip()) for part in text.split(",") if part.strip())
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    return parse


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is None:
        return "what the device has"
    return (
        ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in default)
        if isinstance(default, tuple)
        else str(default)
    )


def _add_timing(parser: argparse.ArgumentParser) -> None:
    from foretrace.bench.timing import Timing

    usual = Timing()
    group = parser.add_argument_group("timing")
    group.add_argument(
        "--device", default=usual.device, metavar="cpu|cuda[:N]", help="default: a GPU where there is one"
    )
    group.add_argument(
        "--how",
        choices=("back-to-back", "flush", "single"),
        help="a sample is: many calls in a row; one call after L2 was emptied; one call until it is done, launches included (default: back-to-back; latency: single)",
    )
    for name, says in (
        ("warmup_s", "seconds of calls before the first sample"),
        ("least_s", "seconds to sample, at least"),
        ("most_s", "seconds to sample, at most"),
    ):
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(
            flag, type=float, metavar="S", default=getattr(usual, name), help=f"{says} (default: %(default)s)"
        )
    group.add_argument(
        "--timeout-s", type=float, metavar="S", help="seconds that one case may take (default: no limit)"
    )
    group.add_argument("--isolate", action="store_true", help="run each case in a process of its own")
    group.add_argument(
        "--cold",
        action="store_true",
        help="time the first ten calls of each case, in a process of its own, without a warm-up",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", default=usual.seed, help="of random numbers (default: 0)"
    )


def _timing(args: argparse.Namespace, *, usual: How = "back-to-back") -> Timing:
    from foretrace.bench.timing import Timing

    names = ("device", "warmup_s", "least_s", "most_s", "timeout_s", "isolate", "cold", "seed")
    return Timing(**{name: getattr(args, name) for name in names}, how=args.how or usual)


def _text(benchmark: Benchmark, ending: str) -> str:
    if ending == "json":
        return benchmark.to_json()
    from foretrace.present.text import bench_tables

    return bench_tables.csv(benchmark) if ending == "csv" else bench_tables.markdown(benchmark)


def _print_table(benchmark: Benchmark, *, plot: bool, columns: str | None) -> None:
    from foretrace.present.text import bench_tables, terminal

    wanted = [name.strip() for name in columns.split(",")] if columns else None
    for number, result in enumerate(bench_tables.results(benchmark, wanted)):
        if number:
            print()
        terminal.show_result(result, all_columns=True)
    if plot:
        print()
        for line in bench_tables.bars(benchmark, min(shutil.get_terminal_size().columns, terminal.MAX_WIDTH)):
            print(line)
    if benchmark.notes:
        print()
    for note in benchmark.notes:
        print(f"· {visible(note)}")


def _write(path: Path, text: str) -> None:
    with _output.writing(path) as file:
        file.write_text(text, encoding="utf-8")
    print(f"wrote {visible(str(path))}", file=sys.stderr)


def _say(text: str) -> None:
    from foretrace.capture.known_secrets import masked

    print(visible(masked(text)), file=sys.stderr, flush=True)
