"""What changes to the program would be worth, by replaying its steps with them made."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import UsageError

if TYPE_CHECKING:
    from foretrace.predict.prediction import Prediction

_EXAMPLES = """\
changes (several --change are made together, never added up):
  scale kernel:~flash 0.5        durations times 0.5 where the name matches the pattern
  set kernel:~softmax 20us       durations of 20 microseconds
  remove op:aten::copy_          operators, with their host time, calls and device work
  remove op:aten::copy_ under:Block_0
  unwait call:~Synchronize       calls that return without waiting
  move copy:~HtoD                device work on a stream of its own
  scale host 0.8                 the host's own work
  add host 50us                  host work at the start of every step
  graph step                     every step's launches replayed as CUDA graphs
  fuse kernel:~elementwise       kernels that follow one another on a stream, as one kernel
  scale batch 2                  twice the items in every step; the speed-up is then per item
a name follows kernel:, copy:, set:, op: or call:, with ~ it is a regular expression;
under: keeps what lies in a module or annotation of that name
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the changes and the measured step time."""
    _input.add_path(parser)
    parser.add_argument(
        "--change", action="append", required=True, metavar="CHANGE", help="what to change; see below"
    )
    parser.add_argument(
        "--step-ms",
        type=_milliseconds,
        metavar="MS",
        help="step time measured without a profiler; narrows the range",
    )
    _output.add_format(parser, formats=("table", "json"))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints the prediction."""
    from foretrace.predict.builder import build
    from foretrace.predict.calibrate import calibrate
    from foretrace.predict.changes import parse
    from foretrace.predict.prediction import predict, to_dict
    from foretrace.present.text import terminal

    trace = _input.open_path(args)
    program = build(trace)
    fitted = calibrate(trace, program, step_ns=args.step_ms * 1e6 if args.step_ms else None)
    prediction = predict(fitted, tuple(parse(text, trace, fitted.program) for text in args.change))
    if args.format == "json":
        print(json.dumps({"path": str(trace.path), "changes": args.change, **to_dict(prediction)}, indent=2))
    else:
        terminal.show_prediction(prediction)
        if prediction.items != 1:
            print(_per_item(prediction))


def _per_item(prediction: Prediction) -> str:
    """The time that as many items take as a step holds now."""
    from foretrace.units import format_value

    after = (
        each / prediction.items
        for each in (prediction.after_ns.point, prediction.after_ns.low, prediction.after_ns.high)
    )
    point, low, high = (format_value("_ns", each) for each in after)
    now = format_value("_ns", prediction.step_ns)
    return (
        f"per item    as many items as a step holds now take {now} → {point} ({low} to {high}); "
        f"the step above holds {prediction.items:g} times as many"
    )


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"--step-ms {text}: a time in milliseconds is above 0")
    return value
