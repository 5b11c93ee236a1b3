"""Predict the step time after a change, by replaying the recorded steps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foretrace._version import __version__
from foretrace.commands import _input, _output
from foretrace.secret_formats import without_known_secrets

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case
    from foretrace.predict.changes import Change
    from foretrace.predict.prediction import Prediction

SCHEMA = "foretrace.predict/1"
_COMPILING = "unfused-elementwise"  # the rule whose fixes are the ways to compile
_EXAMPLES = """\
changes (several --change options are applied together and replayed once):
  scale kernel:~flash 0.5        kernels whose name matches `flash` take half as long
  set kernel:~softmax 20us       matching kernels take 20 microseconds
  remove op:aten::copy_          remove these operators: their CPU time, calls and GPU work
  remove op:aten::copy_ under:Block_0
  unwait call:~Synchronize       matching calls return without waiting
  move copy:~HtoD                matching GPU work runs on a stream of its own
  scale host 0.8                 the CPU's own work takes 0.8 times as long
  add host 50us                  add CPU work at the start of every step
  graph step                     launch every step as CUDA graphs
  fuse kernel:~elementwise       merge neighbouring kernels on a stream into one
  scale batch 2                  twice the items in every step; the speed-up is then per item
  compile                        torch.compile of the model, as `foretrace diagnose` predicts it
  compile reduce-overhead        the same replayed as CUDA graphs; `compile whole-step`: the whole step as one graph
  fix unfused-attention          what `foretrace diagnose` proposes for this rule
  fix no-tensor-cores:tf32       one of the alternatives that it lists for this rule
Names follow kernel:, copy:, set:, op: or call:; after ~ they are regular expressions.
under: selects only what runs inside a module or annotation of that name.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the changes and the measured step time."""
    _input.add_path(parser)
    parser.add_argument(
        "--change", action="append", required=True, metavar="CHANGE", help="a change; see below"
    )
    _input.add_step_ms(parser)
    _input.add_rich(parser)
    _output.add_format(parser, formats=("table", "json"))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints the prediction."""
    from foretrace.present.text import tables, terminal

    case = _input.open_case(
        args.path,
        no_cache=args.no_cache,
        step_ms=args.step_ms,
        rich=args.rich,
        reading=_input.reading(args),
    )
    prediction = case.predict(tuple(change_of(case, text) for text in args.change))
    if args.format == "json":
        _output.print_document(tables.document_to_json(document(case, args.change, prediction)))
    else:
        terminal.show_prediction(prediction)
        if prediction.items != 1:
            print(_per_item(prediction))


def document(case: Case, changes: Sequence[str], prediction: Prediction) -> dict[str, Any]:
    """The prediction as `--format json` prints it."""
    from foretrace.predict.prediction import to_dict

    path = without_known_secrets(str(case.whole.path))
    head = {"schema": SCHEMA, "foretrace": __version__, "path": path, "changes": list(changes)}
    return {**head, **to_dict(prediction)}


def change_of(case: Case, text: str) -> Change:
    """The change that the text describes, or the fix that the diagnosis has for a rule."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import fix_of
    from foretrace.diagnose.measured_limits import within_limits
    from foretrace.predict.changes import parse

    verb, _, rest = text.strip().partition(" ")
    if verb == "compile":
        return fix_of(case, f"{_COMPILING}:{rest.strip() or 'default'}", RULES)
    if verb == "fix":
        return fix_of(case, rest.strip(), RULES)
    return within_limits(case, parse(text, case.trace, case.program))


def _per_item(prediction: Prediction) -> str:
    """The time that as many items take as a step holds now."""
    from foretrace.units import format_value

    after = prediction.after_ns
    point, low, high = (
        format_value("_ns", time_ns / prediction.items) for time_ns in (after.point, after.low, after.high)
    )
    now = format_value("_ns", prediction.step_ns)
    return (
        f"per item    the items of one step now take {now} → {point} ({low} to {high}); "
        f"the step above holds {prediction.items:g} times as many"
    )
