"""Both readers read the same from every recording, in any layout, in any pieces and cut anywhere."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.errors import FormatError, InputError
from foretrace.ingest import kineto, kineto_native, source
from tests.corpus import CORPUS, needs_corpus, unlike
from tests.ingest import fuzz, samples
from tests.ingest.comparison import (
    READERS,
    assert_same_tables,
    assert_same_trace,
    assert_says_which_file,
    needs_native,
)

SHIPPED = Path(foretrace.__file__).parent / "samples" / "naive_attention.json.gz"
OURS = [SHIPPED, *sorted((Path(__file__).parents[1] / "traces").rglob("*.json.gz"))]
# Above this, only the extension reads the rewritten copies, and fewer of them: the Python reader would take minutes.
# FORETRACE_ALL_LAYOUTS=1 has both readers read every layout of every recording.
SMALL = 1 << 40 if os.environ.get("FORETRACE_ALL_LAYOUTS") else 1_500_000
CUTS_BETWEEN = 1 if os.environ.get("FORETRACE_ALL_LAYOUTS") else 7
SEEDS = {"kineto": samples.KINETO, "compact": samples.COMPACT, "list": samples.BARE_LIST}
# What may stand where the same text stood before.
OTHERWISE = (
    (b'"ph": "X"', b'"ph": "i"'), (b'"ph": "X"', b'"ph": 1'), (b'"ph": "X"', b'"ph":  "X"'), (b'"ph": "s"', b'"ph": "X"'),
    (b'"cat": "cpu_op"', b'"cat": "kernel"'), (b'"cat": "cpu_op"', b'"cat": "cpu_op'), (b'"cat": "cpu_op"', b'"cat": null'),
    (b'"cat": "kernel"', b'"cat": "kern\\u0065l"'), (b'"pid": 7', b'"pid": 70'), (b'"pid": 7,', b'"pid": "7" ,'),
    (b'"tid": 8', b'"tid": 8.5'), (b'"tid": 8,', b'"tid": 8 ,'), (b'"tid": 8,', b'"tid": 8, "tid": 9,'),
    (b'"name": "aten::add"', b'"name": "aten::ad\\"d"'), (b'"name": "aten::add"', b'"name": "aten::add" '),
    (b'"name": "aten::add"', b'"name": "aten::add\\'), (b'"name": "aten::add"', b'"name": ["aten::add"]'),
    (b'"name": "[memory]"', b'"name": "memory"'), (b'"Record function id": 0', b'"Record function id": [0}'),
    (b'"Record function id": 0', b'"Record function id": NaN'), (b'"Record function id": 0', b'"Record function id": 0.5'),
    (b'[[2, 3], []]', b'[[2, 3], [}'), (b'[[2, 3], []]', b'[[2, 3]]'), (b'[[2, 3], []]', b'"[[2, 3], []]"'),
    (b'["float", "Scalar"]', b'["float", "Sca"lar"]'), (b'"cbid": 211', b'"cbid": 211, "correlation": 3'),
    (b'"device": 0', b'"device": 1'), (b'"device": 0', b'"stream": 0'), (b'[8, 1, 1]', b'[8, 1, true]'),
    (b'"note": "same"', b'"note": "same", "note": "other"'), (b'"note": "same"', b'"note": {"a": 1}'),
    (b'"Total Allocated": 4096', b'"Total Allocated": 4096e0'), (b'"Device Type": 1', b'"Device Type": 18446744073709551616'),
    (b'"ts": 1', b'"ts": -1'), (b'"ts": 1', b'"ts": .1'), (b'"ts": 1', b'"ts": 1e1'), (b'"ts": 1', b'"ts": 00000000000000000001'),
    (b'"ts": 1', b'"ts": "1'), (b'"ts": 1', b'"ts": 99999999999999991'), (b'"dur": ', b'"dur": 1234567890123'), (b'"dur": ', b'"dur": -'),
    (b'"dur": ', b'"dur":  '), (b'"dur": ', b'"dur": null, "d": '), (b'"External id": ', b'"External id": -'),
    (b'"External id": ', b'"External id": 12345678'), (b'"External id": ', b'"External id": 1234567890123456789'),
    (b'"External id": ', b'"External id": 1.'), (b'"Ev Idx": ', b'"Ev Idx": N'), (b'"Ev Idx": ', b'"Ev Idx": -'), (b'"Ev Idx": ', b'"Ev Idx": ' + 900 * b'1'),
    (b'"ts": 1', b'"ts": 1.5, "t": 1'), (b'"dur": ', b'"dur": 0.0001'),
    (b'"Bytes": ', b'"Bytes": -'), (b'"Addr": ', b'"Addr": -'),
    (b'"args": {', b'"args": {}, "args": {'), (b'"args": {', b'"args": 5, "argz": {'), (b'  },\n', b'  }\n'),
    (b'  },\n', b'  },,\n'), (b'  },\n', b'  },\x00\n'), (b'  },\n', b'  },\n {},\n'),
)  # fmt: skip


def is_kineto(path: Path) -> bool:
    try:
        return kineto.accepts(source.open_source(path).head)
    except InputError:
        return False


def recordings() -> list[Any]:
    """Our own recordings, then those of the corpus where it is there."""
    found = [pytest.param(path, id=path.name) for path in OURS if is_kineto(path)]
    if not CORPUS.is_dir():
        return [*found, pytest.param(None, marks=needs_corpus, id="corpus")]
    files = unlike(path for path in CORPUS.rglob("*.json*") if is_kineto(path))
    return found + [pytest.param(path, id=str(path.relative_to(CORPUS))) for path in files]


RECORDINGS = recordings()


def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(source.GZIP) else data


def rewritten(data: bytes, **layout: Any) -> bytes:
    """The same document in another layout, every number with its digits."""
    return written(parsed(data), **layout)


def parsed(data: bytes) -> Any:
    """The document with its numbers as text behind a mark: they go through the encoder with all their digits."""
    return json.loads(data, strict=False, parse_float="\x01".__add__, parse_constant="\x01".__add__)


def written(document: Any, **layout: Any) -> bytes:
    """What `parsed` gave, in a layout, the marks taken away with their quotes."""
    text = json.dumps(document, ensure_ascii=False, **layout)
    return re.sub(r'"\\u0001([^"]*)"', r"\1", text).encode("utf-8", "surrogatepass")


# The last has white space where no writer puts it, at the speed of the compact one.
LAYOUTS: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "indent 1": {"indent": 1},
    "indent 4": {"indent": 4},
    "scattered": {"separators": ("\n\t , ", "  :\r\n ")},
}


def test_the_corpus_is_read() -> None:
    if not CORPUS.is_dir():
        pytest.skip(f"the shared recordings are not at {CORPUS}")
    assert len(RECORDINGS) >= 49  # 26 in h200/, 6 in other/, 20 of the peers, and ours


def test_rewriting_keeps_the_digits() -> None:
    data = b'{"a": 1790857026000.123, "b": [1.50, NaN], "c": "1.5 \\u0001", "d": 18446744073709551615}'
    assert rewritten(data, separators=(",", ":")) == (
        b'{"a":1790857026000.123,"b":[1.50,NaN],"c":"1.5 \\u0001","d":18446744073709551615}'
    )


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("path", RECORDINGS)
def test_both_readers_agree(path: Path) -> None:
    native, python = (foretrace.open(path, reader=reader) for reader in ("native", "python"))
    assert native.spans.height > 0
    assert_same_trace(native, python)


def layouts_of_large(path: Path) -> tuple[str, ...]:
    """Both, but for h200, whose recordings one version of torch wrote: each program's slow one in one, its fixed one in the other."""
    if path.parent.name != "h200":
        return ("compact", "scattered")
    return ("compact",) if ".slow." in path.name else ("scattered",)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("path", RECORDINGS)
def test_the_layout_does_not_matter(path: Path, tmp_path: Path) -> None:
    data = content(path)
    original = foretrace.open(path, reader="native")
    copy = tmp_path / path.name.removesuffix(".gz")  # its name may hold the rank
    small = len(data) < SMALL
    document = parsed(data)
    for name in ("compact", "indent 1", "indent 4") if small else layouts_of_large(path):
        copy.write_bytes(written(document, **LAYOUTS[name]))
        changed = foretrace.open(copy, reader="native")
        assert_same_tables(original, changed)
        if small:
            assert_same_trace(changed, foretrace.open(copy, reader="python"))


@pytest.mark.slow
@needs_native
def test_what_was_the_same_for_long_and_then_is_not() -> None:
    generator = random.Random(5)
    for old, new in OTHERWISE:
        places = [match.start() for match in re.finditer(re.escape(old), samples.REPEATED)]
        assert len(places) > 10, old
        for place in (places[-1], places[-5], places[5]):
            data = samples.REPEATED[:place] + new + samples.REPEATED[place + len(old) :]
            assert fuzz.differences(data, generator) == [], (old, new)


@needs_native
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_samples_in_every_layout(seed: str, layout: str) -> None:
    data = rewritten(SEEDS[seed], **LAYOUTS[layout])
    native, original = (fuzz.plain(whole(each)) for each in (data, SEEDS[seed]))
    assert native == original
    assert fuzz.differences(data, random.Random(1)) == []


def whole(data: bytes) -> Any:
    return pushed(data, len(data))


def pushed(data: bytes, size: int) -> Any:
    from foretrace._scan import Scanner

    scanner = Scanner()
    for at in range(0, len(data), size):
        scanner.push(data[at : at + size])
    return kineto_native.linked(scanner)


@needs_native
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_of_any_size(seed: str, size: int) -> None:
    assert fuzz.plain(pushed(SEEDS[seed], size)) == fuzz.plain(whole(SEEDS[seed]))


@needs_native
def test_where_the_input_is_cut_does_not_decide_what_follows_damage() -> None:
    """The event behind the damage holds one that looks whole when the outer one is cut off."""
    inner = b'{"ph": "X", "name": "inner", "pid": 1, "tid": 1, "ts": 2, "dur": 1}'
    outer = (
        b'{"ph": "X", "name": "outer", "args": {"x": ' + inner + b'}, "pid": 1, "tid": 1, "ts": 1, "dur": 9}'
    )
    data = b'{"traceEvents": [{"ph": }, ' + outer + b"]}"
    for size in range(1, len(data)):
        assert fuzz.plain(pushed(data, size)) == fuzz.plain(whole(data)), f"in pieces of {size} bytes"
    assert fuzz.differences(data, random.Random(1)) == []


@needs_native
@pytest.mark.parametrize("size", [7, 4096, 100_003])
def test_pieces_of_a_real_recording(size: int) -> None:
    data = content(OURS[1])
    assert fuzz.plain(pushed(data, size)) == fuzz.plain(whole(data))


@pytest.mark.exhaustive
@needs_native
@pytest.mark.parametrize("seed", SEEDS)
def test_every_truncation_point(seed: str) -> None:
    data = SEEDS[seed]
    complete = len(fuzz.plain(whole(data))["spans.start"])
    most = 0
    for end in range(1, len(data) + 1):
        if end % CUTS_BETWEEN == 0 or end > len(data) - 100:
            assert fuzz.differences(data[:end], random.Random(end)) == [], f"cut at {end}"
        read = fuzz.native(data[:end], random.Random(end))
        count = 0 if read is None else len(read.groups["spans"]["start"])
        assert count >= most, f"an event that stands before byte {end} was lost"
        most = count
    assert most == complete


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_truncated_gzip(reader: str, tmp_path: Path) -> None:
    data = gzip.compress(samples.KINETO, mtime=0)
    path = tmp_path / "cut.json.gz"
    opened = 0
    for end in range(1, len(data), 29):
        path.write_bytes(data[:end])
        try:
            trace = foretrace.open(path, reader=reader)
        except InputError as error:
            assert_says_which_file(error, "cut.json.gz")
        else:
            opened += 1
            assert "broken-stream" in [repair.code for repair in trace.repairs]
    assert opened > 0


# --- two threads ------------------------------------------------------------------------------------------


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[bool]]:
    """Makes every plain file be read in two halves; told a place, cuts there. Returns which cuts held."""

    def force(place: int | None = None) -> list[bool]:
        held: list[bool] = []
        halves = kineto_native._scan_halves

        def observed(*args: Any) -> Any:
            scanner = halves(*args)
            held.append(scanner is not None)
            return scanner

        monkeypatch.setattr(kineto_native, "_TWO_THREADS_FROM", 1)
        monkeypatch.setattr(kineto_native, "_scan_halves", observed)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        if place is not None:
            monkeypatch.setattr(kineto_native, "_find_cut", lambda _file, _size: place)
        return held

    return force


@needs_native
@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in OURS if is_kineto(path)])
def test_two_threads_read_the_same(path: Path, tmp_path: Path, cuts: Any) -> None:
    plain = tmp_path / path.name.removesuffix(".gz")
    plain.write_bytes(content(path))
    serial = foretrace.open(plain, reader="native")
    held = cuts()
    assert_same_trace(foretrace.open(plain, reader="native"), serial)
    assert held == [True]


@pytest.mark.slow
@needs_native
def test_a_cut_anywhere_reads_the_same(tmp_path: Path, cuts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sample.json"
    path.write_bytes(samples.KINETO)
    serial = foretrace.open(path, reader="native")
    braces = [match.start() for match in re.finditer(rb"\{", samples.KINETO)]
    events = {match.start() for match in re.finditer(rb"(?m)^  \{", samples.KINETO)}
    held = cuts(0)
    for place in braces + list(range(1, len(samples.KINETO), 97)):
        monkeypatch.setattr(kineto_native, "_find_cut", lambda _file, _size, place=place: place)
        assert_same_trace(foretrace.open(path, reader="native"), serial)
        if place - 2 in events and samples.KINETO[place - 4 : place - 2] == b",\n":
            assert held[-1], f"the cut at {place} stands between two events"
    assert held.count(True) >= 14
    assert held.count(False) > 30


@needs_native
@pytest.mark.parametrize("inside", ["name", "argument", "header"])
def test_a_cut_in_what_only_looks_like_an_event(inside: str, tmp_path: Path, cuts: Any) -> None:
    fake = '{ "ph": "X", "cat": "kernel", "name": "fake", "pid": 0, "tid": 7, "ts": 5, "dur": 1}'
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 9, "args": {}}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event, {**event, "ts": 3, "name": "MARK"}, event]})
    if inside == "name":
        text = text.replace("MARK", 'x { "ph" y')  # its quotes are not escaped
    elif inside == "argument":
        text = text.replace('"MARK"', f'"b", "args": {{"nested": {fake}}}')
    else:
        text = text.removesuffix("}") + f', "note": [{fake}]}}'
    path = tmp_path / "trace.json"
    path.write_text(text)
    serial = foretrace.open(path, reader="native")
    held = cuts(text.index('{ "ph"'))
    assert_same_trace(foretrace.open(path, reader="native"), serial)
    assert held == [False]
    assert_same_trace(serial, foretrace.open(path, reader="python"))


@needs_native
def test_damage_in_either_half(tmp_path: Path, cuts: Any) -> None:
    events = [
        f'{{"ph": "X", "cat": "cpu_op", "name": "e{i}", "pid": 1, "tid": 1, "ts": {10 * i}, "dur": 5}}'
        for i in range(100)
    ]
    events[20] = events[20][:40]
    events[80] = events[80].replace("5}", "NaN}")
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ",\n".join(events) + "]}")
    serial = foretrace.open(path, reader="native")
    held = cuts()
    assert_same_trace(foretrace.open(path, reader="native"), serial)
    assert held == [True]
    assert [repair.code for repair in serial.repairs] == ["bare-word", "damaged", "no-duration"]
    assert serial.spans.height == 99


@needs_native
def test_a_scanner_is_used_once() -> None:
    from foretrace._scan import Scanner

    scanner = Scanner()
    scanner.push(samples.COMPACT)
    with pytest.raises(ValueError, match="itself"):
        scanner.merge(scanner)
    with pytest.raises(TypeError):
        scanner.merge(None)
    scanner.finish()
    for call in (scanner.finish, scanner.between_events, lambda: scanner.push(b"")):
        with pytest.raises(ValueError, match="finished"):
            call()


@needs_native
@pytest.mark.parametrize("data", [b"", b" ", b"x", b"\xef\xbb\xbf", b"1", b'"a"'])
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(FormatError):
        pushed(data, 1)
