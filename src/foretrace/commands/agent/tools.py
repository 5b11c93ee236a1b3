"""The tools: each asks what a command asks, and returns an Answer."""

from __future__ import annotations

import inspect
import shlex
import typing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from foretrace import analyze
from foretrace.analyze.result import Analysis, Result
from foretrace.analyze.snapshots.findings import SnapshotFindings
from foretrace.analyze.snapshots.opening import open_findings
from foretrace.analyze.snapshots.steps import LEAST_STEPS
from foretrace.commands import _output, _query
from foretrace.commands import diagnose as diagnose_command
from foretrace.commands import explain as explain_command
from foretrace.commands import predict as predict_command
from foretrace.commands import sql as sql_command
from foretrace.commands.agent.listing import listed
from foretrace.commands.agent.opened import Opened
from foretrace.commands.agent.roots import Roots
from foretrace.compare.compared import compare_subjects, to_dict
from foretrace.compare.subjects import Folder, Recording, Subject, open_subject, short_names
from foretrace.compare.traces import Comparison
from foretrace.diagnose import RULES
from foretrace.diagnose import find as find_rule
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnosed
from foretrace.errors import MissingDataError, UsageError, unknown
from foretrace.present.agent.answer import Answer, Next
from foretrace.present.agent.brief import finding_ids, next_step, reasons, source_folders, told
from foretrace.present.text import comparison, findings, memory_page, tables

FINDING_SCHEMA, PAGE_SCHEMA = "foretrace.finding/1", "foretrace.page/1"
NO_RECORDING = "no recording is read"
MOST_ROWS = 1_000
DOCUMENT_ROWS = 100_000
SQL_TIMEOUT_S = 30.0
_CHANGES = "kernel:, op:, copy: or call:, then a name, or a pattern after ~"


class Tools:
    """What can be asked about the recordings under some roots."""

    def __init__(self, roots: Roots, *, cache: bool = True) -> None:
        self._roots = roots
        self._opened = Opened(roots, cache=cache)

    def recordings(self, folder: str = ".") -> Answer:
        """What can be asked about in a folder, the newest first."""
        path = self._roots.path(folder)
        found, cut = listed(path, self._roots)
        rows = [
            [
                self._roots.short(each.path),
                each.sort,
                each.size_bytes,
                datetime.fromtimestamp(each.changed_s, UTC).isoformat()[:19],
            ]
            for each in found
        ]
        columns = ("path", "sort", "size_bytes", "changed_utc")
        first = next((each for each in found if each.sort in ("run", "recording")), None)
        says = f"{len(found)} recordings, Runs, benchmarks and snapshots" + (f"; {cut}" if cut else "")
        return Answer(
            trust=NO_RECORDING,
            says=says if found else f"nothing recorded in this folder{'; ' + cut if cut else ''}",
            of="files",
            columns=columns,
            rows=rows,
            more="name a folder below this one",
            next=None
            if first is None
            else next_step("diagnose", first.path, command=f"diagnose {shlex.quote(str(first.path))}"),
            document=lambda: tables.frame_to_json(pl.DataFrame(rows, schema=list(columns), orient="row")),
        )

    def diagnose(self, path: str, top: int = 5) -> Answer:
        """What to change in the recorded program."""
        file = self._roots.path(path)
        return diagnose_command.agent_answer(
            self._opened.case(file), file, top=max(top, 1), roots=self._roots.folders
        )

    def finding(self, path: str, rule: str, index: int = 0) -> Answer:
        """One finding with its evidence."""
        file = self._roots.path(path)
        case = self._opened.case(file)
        case.require_replay()
        diagnosis = diagnosed(case, RULES)
        ids = finding_ids(diagnosis.findings)
        of_rule = [
            number
            for number, (each, name) in enumerate(zip(diagnosis.findings, ids, strict=True))
            if rule in (each.rule, name)
        ]
        if not of_rule:
            raise self._no_finding(rule, diagnosis)
        if not 0 <= index < len(of_rule):
            raise UsageError(f"{rule} has {len(of_rule)} findings here: index is 0 to {len(of_rule) - 1}")
        chosen = diagnosis.findings[of_rule[index]]
        document = findings.finding_dict(chosen)
        row = told(chosen, of_rule[index], diagnosis, source_folders(file, *self._roots.folders))
        name, _, options = find_rule(chosen.rule).see.partition(" ")
        fix = f"fix {chosen.rule}" + (f":{chosen.label}" if chosen.label else "")
        if chosen.change is not None:
            command = f"predict {shlex.quote(str(file))} --change {shlex.quote(fix)}"
            following = next_step("predict", file, command=command, changes=[fix])
        else:
            following = next_step(
                "show",
                file,
                command=f"show {name} {shlex.quote(str(file))} {options}".rstrip(),
                analysis=name,
            )
        alternatives = [
            {"label": other["label"], "fix": other["fix"]["says"], "code": other["fix"]["code"],
             "unless": other["unless"], "predicted": _numbers(other["predicted"])}
            for other in document["alternatives"]
        ]  # fmt: skip
        return Answer(
            **self._trust(case),
            says=chosen.says,
            facts={
                "finding": {each: value for each, value in row.items() if each not in ("says", "or")},
                "why": chosen.why,
                "basis": chosen.predicted.basis
                if chosen.predicted
                else "not predicted: nothing can be replayed",
                "evidence": dict(chosen.evidence),
                "limits": {each: limit["value"] for each, limit in document["limits"].items()},
            },
            of="alternatives",
            rows=alternatives,
            next=following,
            document=lambda: tables.document_to_json({"schema": FINDING_SCHEMA, **document}),
        )

    def _no_finding(self, rule: str, diagnosis: Diagnosis) -> UsageError | MissingDataError:
        name = rule.partition(".")[0]
        if name not in (each.name for each in RULES):
            return unknown(f"no rule named {name!r}", name, (each.name for each in RULES))
        why = next((each.why for each in diagnosis.unchecked if each.rule == name), None)
        if why is not None:
            return MissingDataError(f"{name} was not checked: {why}")
        found = ", ".join(dict.fromkeys(each.rule for each in diagnosis.findings)) or "none"
        return MissingDataError(f"{name} found nothing here; findings: {found}")

    def show(
        self,
        path: str,
        analysis: str,
        group_by: str = "",
        sort: str = "",
        limit: int = 25,
        contains: str = "",
    ) -> Answer:
        """One analysis of a recording as a table."""
        file = self._roots.path(path)
        chosen = analyze.find(analysis)
        options: dict[str, Any] = {}
        if group_by:
            option = next((name for name in ("group_by", "by") if name in chosen.options), None)
            if option is None:
                raise UsageError(f"{analysis} has no groups; ask without group_by")
            choices = _choices(chosen, option)
            if choices and group_by not in choices:
                raise unknown(f"{analysis} is not grouped by {group_by!r}", group_by, choices)
            options[option] = group_by
        case = self._opened.case(file)
        case, result = _result(case, analysis, options)
        picked = _picked(result.table, sort, contains)
        words = "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
        return Answer(
            **self._trust(case),
            says=result.says,
            facts={
                **({"values": dict(result.values)} if result.values else {}),
                **({"notes": list(result.notes)} if result.notes else {}),
                **({"shares": dict(result.denominators)} if result.denominators else {}),
            },
            columns=tuple(picked.columns),
            rows=_rows(picked, limit),
            total=picked.height,
            more="raise limit, or name a part of a name in contains",
            next=_after_show(analysis, file),
            document=lambda: tables.to_json(result, case.whole),
            of=f"rows of `foretrace show {analysis} PATH{words}`",
        )

    def predict(self, path: str, changes: list[str]) -> Answer:
        """What a step would take with some changes made together."""
        file = self._roots.path(path)
        if not changes:
            raise UsageError(
                f'name a change, such as "fix unfused-attention" or "scale kernel:~softmax 0.5": {_CHANGES}'
            )
        case = self._opened.case(file)
        prediction = case.predict(tuple(predict_command.change_of(case, text) for text in changes))
        document = predict_command.document(case, changes, prediction)
        point, low, high = prediction.speedup.point, prediction.speedup.low, prediction.speedup.high
        quoted = shlex.quote(str(file))
        return Answer(
            **self._trust(case),
            says=f"{prediction.verdict}: × {point:.2f} ({low:.2f} to {high:.2f}) with all of these changes made",
            facts={
                each: document[each] for each in ("changes", "step_ms", "after_ms", "basis", "not_promised")
            }
            | ({"items": prediction.items} if prediction.items != 1 else {}),
            next=Next(
                f'make the change, record again, then compare(a="{file}", b="NEW")',
                f"foretrace compare {quoted} NEW",
            ),
            document=lambda: tables.document_to_json(document),
        )

    def compare(self, a: str, b: str) -> Answer:
        """Which of two recordings is faster, and why."""
        paths = [self._roots.path(a), self._roots.path(b)]
        names = short_names(paths)
        one, other = (self._subject(path, name) for path, name in zip(paths, names, strict=True))
        found = compare_subjects(one, other, self._opened.case)
        document = to_dict(found)
        frame = comparison.frame(found)
        shown = ("verdict", "why", "before_ms", "after_ms", "speedup", "per", "known_by", "notes")
        return Answer(
            **self._trust_of_both(one, other),
            says=found.says,
            facts={each: document[each] for each in shown if document.get(each) not in (None, [], "")},
            of="causes, which sum to the difference" if isinstance(found, Comparison) else "rows",
            columns=tuple(frame.columns),
            rows=_rows(frame, MOST_ROWS),
            total=frame.height,
            next=next_step("diagnose", paths[1], command=f"diagnose {shlex.quote(str(paths[1]))}")
            if isinstance(other, Recording)
            else None,
            document=lambda: tables.document_to_json(document),
        )

    def _subject(self, path: Path, name: str) -> Subject:
        subject = open_subject(path, name, self._opened.case)
        for file in subject.files.values() if isinstance(subject, Folder) else ():
            self._roots.check(file)
        return subject

    def memory(self, path: str) -> Answer:
        """Who holds memory at the peak."""
        file = self._roots.path(path)
        found = open_findings(file, read=self._opened.snapshot)
        if found is not None:
            return _of_snapshot(found, file)
        case, result = _result(self._opened.case(file), "memory", {})
        return Answer(
            **self._trust(case),
            says=result.says,
            facts={"values": dict(result.values), **({"notes": list(result.notes)} if result.notes else {})},
            columns=tuple(result.table.columns),
            rows=_rows(result.table, MOST_ROWS),
            next=next_step(
                "show",
                file,
                command=f"show saved-activations {shlex.quote(str(file))}",
                analysis="saved-activations",
            ),
            document=lambda: tables.to_json(result, case.whole),
        )

    def sql(self, path: str, query: str, limit: int = 50) -> Answer:
        """What a query over the tables of a recording yields."""
        file = self._roots.path(path)
        _query.check(query)
        case = self._opened.case(file)
        answered = sql_command.query(case.whole, query, timeout_s=SQL_TIMEOUT_S, most_rows=DOCUMENT_ROWS)
        height = answered.frame.height
        return Answer(
            **self._trust(case),
            says=f"{'more than ' if answered.cut else ''}{height} rows",
            columns=tuple(answered.frame.columns),
            rows=_rows(answered.frame, limit),
            total=height,
            more="raise limit, or let the query group, order and limit",
            next=None
            if height
            else next_step(
                "sql", file, command=f"sql {shlex.quote(str(file))} 'show tables'", query="show tables"
            ),
            document=lambda: tables.frame_to_json(answered.frame),
        )

    def explain(self, name: str) -> Answer:
        """What a name means: of a kernel, an operator, a rule or an analysis."""
        if not name.strip():
            raise UsageError("give a name, such as aten::mm, host-sync or idle")
        page = _page(name.strip())
        if page is not None:
            lines = page.splitlines()
            return Answer(
                trust=NO_RECORDING, says=lines[0], of="lines", rows=lines[1:],
                document=lambda: tables.document_to_json({"schema": PAGE_SCHEMA, "name": name, "page": page}),
            )  # fmt: skip
        document = explain_command.document(name)
        return Answer(
            trust=NO_RECORDING,
            says=str(document["says"]),
            facts={each: document[each] for each in ("name", "kind", "watch", "facts") if document[each]},
            document=lambda: tables.document_to_json(document),
        )

    def _trust(self, case: Case) -> dict[str, Any]:
        judged = case.keep("trust for agents", partial(diagnose_command.judged, case.whole))
        return {"trust": judged.verdict, "reasons": reasons(judged)}

    def _trust_of_both(self, *subjects: Subject) -> dict[str, Any]:
        told = [(each.name, self._trust(each.case)) for each in subjects if isinstance(each, Recording)]
        if not told:
            return {"trust": "not judged: these are benchmarks, or folders of several recordings"}
        order = ("no", "with care", "yes")
        worst = min((each["trust"] for _, each in told), key=order.index)
        why = tuple(f"{name}: {reason}" for name, each in told for reason in each["reasons"])
        return {"trust": worst, "reasons": why}


def _result(case: Case, name: str, options: dict[str, Any]) -> tuple[Case, Result]:
    """An analysis, of the rich recording where the light one does not hold what it needs."""
    try:
        return case, analyze.run(case.whole, name, **options)
    except MissingDataError:
        if case.rich is None:
            raise
        return case.rich, analyze.run(case.rich.whole, name, **options)


def _choices(chosen: Analysis, option: str) -> tuple[str, ...]:
    hint = typing.get_type_hints(chosen.function).get(option)
    return tuple(map(str, typing.get_args(hint)))


def _picked(table: pl.DataFrame, sort: str, contains: str) -> pl.DataFrame:
    """The rows whose text holds a text, in any case, in the order of a column."""
    if contains:
        texts = [
            name for name, dtype in table.schema.items() if dtype in (pl.String, pl.Categorical, pl.Enum)
        ]
        wanted = contains.lower()
        holds = [
            pl.col(name).cast(pl.String).str.to_lowercase().str.contains(wanted, literal=True)
            for name in texts
        ]
        table = table.filter(pl.any_horizontal(holds).fill_null(value=False)) if holds else table.clear()
    return _output.pick_rows(table, _output.Printing("json", sort or None, 0))[0]


def _rows(table: pl.DataFrame, limit: int) -> list[list[Any]]:
    return [list(row) for row in table.head(min(max(limit, 1), MOST_ROWS)).iter_rows()]


def _after_show(analysis: str, file: Path) -> Next:
    quoted = shlex.quote(str(file))
    if analysis == "kernels":
        return next_step("show", file, command=f"show roofline {quoted}", analysis="roofline")
    return next_step("diagnose", file, command=f"diagnose {quoted}")


def _numbers(predicted: dict[str, Any] | None) -> dict[str, Any] | None:
    return predicted and {name: predicted[name] for name in ("verdict", "speedup", "after_ms")}


def _page(name: str) -> str | None:
    """The manual page of a rule or an analysis; `None` where the name is of neither."""
    if name in (rule.name for rule in RULES):
        return diagnose_command.manual(name)
    known = {each.name: each for each in analyze.ANALYSES}
    return inspect.getdoc(known[name].function) if name in known else None


def _last_repetitions(leaks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The leaks with the last steps that show them, and how many do."""
    return [
        {
            **leak,
            "repetitions": leak["repetitions"][-LEAST_STEPS:],
            "repetitions_count": len(leak["repetitions"]),
        }
        for leak in leaks
    ]


def _of_snapshot(found: SnapshotFindings, file: Path) -> Answer:
    first = found.devices[0]
    frame = memory_page.frame(first, "line", 0)
    document = found.to_dict()
    return Answer(
        trust="not judged: a snapshot holds no times",
        reasons=tuple(found.notes),
        says=found.says,
        facts={
            "by_category": [
                {name: row[name] for name in row}
                for row in memory_page.frame(first, "category", 0).to_dicts()
            ],
            **({"leaks": _last_repetitions(document["leaks"])} if document["leaks"] else {}),
            **({"out_of_memory": document["oom"]} if document["oom"] else {}),
            "fragmentation_pct": document["fragmentation_pct"],
        },
        of=f"lines that hold memory of {first.name} at the peak",
        columns=tuple(frame.columns),
        rows=_rows(frame, 25),
        total=frame.height,
        more="foretrace memory PATH --by line --top 0",
        document=lambda: tables.document_to_json(document),
    )
