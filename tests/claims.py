"""What a page claims that can be checked: paths of the repository, planned things, command lines."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from foretrace import analyze, commands
from foretrace.commands import _version_info
from foretrace.errors import UsageError

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"^\n((?: {4}\S.*\n)+)", re.M)
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"(?:\.{1,2}/)*[\w.@+-]+(?:/[\w.@+-]+)*/?")
_SOURCE_SUFFIXES = (".py", ".md", ".ts", ".tsx", ".mjs")
_TREE_LINE = re.compile(r"^( *)((?:[\w.-]+/)+|[\w.-]+\.(?:py|md|ts|tsx|mjs))(?: {2,}.*)?$")
_PLANNED = re.compile(r"\bplanned\b|\*later\*|\bnot implemented\b", re.I)
_SHELL_END = {"&&", "||", "|", ">", ";", "&"}
# Words that stand for a name of the reader's choice: NAME.tsx, RUN/rank0.
PLACEHOLDERS = {"FILE", "FOLDER", "NAME", "OUT", "PATH", "RUN", "SET"}
# What pages call the activity of a package; the package's own name is known anyway.
ACTIVITIES = {
    "recording": "capture",
    "capturing": "capture",
    "reading": "ingest",
    "analysing": "analyze",
    "predicting": "predict",
    "diagnosing": "diagnose",
    "presenting": "present",
}


@dataclass(frozen=True)
class CommandLine:
    words: tuple[str, ...]
    complete: bool  # from a shell block, to be typed as it stands; else a mention, which may lack its PATH


@dataclass(frozen=True)
class Repository:
    endings: frozenset[str]  # every file and folder, with and without each of its leading folders
    top_folders: frozenset[str]


def repository(files: Iterable[str]) -> Repository:
    paths = {PurePosixPath(name) for name in files}
    paths |= {folder for path in paths for folder in path.parents}
    endings = {"/".join(path.parts[start:]) for path in paths for start in range(len(path.parts))}
    return Repository(frozenset(endings), frozenset(path.parts[0] for path in paths if len(path.parts) > 1))


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text)


def inline_code(text: str) -> list[str]:
    return [" ".join(code.split()) for code in _CODE.findall(prose(text))]


def blocks(text: str) -> list[str]:
    """Fenced blocks without a language, and indented ones: shell commands or a tree."""
    fenced = [body for language, body in _FENCE.findall(text) if language in ("", "sh", "bash", "console")]
    return [*fenced, *_INDENTED.findall(prose(text))]


def named_paths(text: str, top_folders: Iterable[str]) -> set[str]:
    """Paths in backticks, in tree diagrams, and in shell blocks below a folder of the repository's root."""
    found = {code for code in inline_code(text) if _looks_like_a_path(code)} - planned_code(text)
    below = tuple(f"{folder}/" for folder in top_folders)
    for block in blocks(text):
        found |= set(_tree(block))
        words = re.split(r"[\s'\"]+", re.sub(r"#.*", "", block))
        found |= {word for word in words if word.startswith(below) and _PATH.fullmatch(word)}
    return found


def missing_paths(text: str, repository: Repository, *, elsewhere: Iterable[str]) -> list[str]:
    """Named paths that no file or folder of the repository has; a path may leave out leading folders.

    Paths below one of the folders `elsewhere` are not the repository's.
    """
    allowed = tuple(f"{folder}/" for folder in elsewhere)
    return sorted(
        path
        for path in named_paths(text, repository.top_folders)
        if re.sub(r"^(\.{1,2}/)+", "", path).rstrip("/") not in repository.endings
        and not f"{path}/".startswith(allowed)
        and not PLACEHOLDERS & {part.partition(".")[0] for part in path.split("/")}
    )


def planned_code(text: str) -> set[str]:
    """What stands in backticks in a clause or section that says planned."""
    return {code for clause in _planned_clauses(prose(text)) for code in _CODE.findall(clause)}


def planned_but_existing(text: str, *, names: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Existing commands, analyses and flags (`names`) and packages that a clause or section calls planned."""
    exists = {*names, *(f"{package}/" for package in packages)}
    exists |= {f"foretrace {name}" for name in names}
    found = []
    for clause in _planned_clauses(prose(text)):
        codes = [code.partition(" PATH")[0] for code in _CODE.findall(clause)]
        codes = [code if code.startswith("foretrace ") else code.partition(" ")[0] for code in codes]
        found += [code for code in codes if code.removeprefix("src/foretrace/") in exists]
        words = re.findall(r"(?:^|, |\band )(\w+)(?=,| and\b| is\b| are\b|$)", clause.strip())
        found += [word for word in words if ACTIVITIES.get(word.lower()) in set(packages)]
    return found


def command_lines(text: str) -> Iterator[CommandLine]:
    """Every `foretrace ...` of the page."""
    planned = planned_code(text)
    for code in inline_code(text):
        if code.startswith("foretrace ") and code not in planned:
            yield CommandLine(tuple(_words(code)), complete=False)
    for block in blocks(text):
        for line in block.splitlines():
            for words in _calls(_words(line)):
                if words[0] == "foretrace" or words[0].endswith("/bin/foretrace"):
                    yield CommandLine(("foretrace", *words[1:]), complete=True)


def script_calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every `python FILE.py ...` of the page: the file and its flags."""
    lines = [code for code in inline_code(text) if code.startswith("python ")]
    lines += [line for block in blocks(text) for line in block.splitlines()]
    for line in lines:
        for words in _calls(_words(line)):
            places = [place for place, word in enumerate(words) if word.endswith(".py")]
            if "python" in words and places:
                flags = [word.partition("=")[0] for word in words[places[0] :] if word.startswith("--")]
                yield words[places[0]], flags


def fault(line: CommandLine) -> str | None:
    """Why this command line would be refused; None where it would run."""
    words = ["kernels" if word == "NAME" else word for word in line.words[1:]]
    names = {command.name for command in commands.COMMANDS}
    if words[0] not in names and not words[0].startswith("-"):
        if not re.search(r"[./]", words[0]) and not words[0].isupper():
            return f"no command {words[0]}"
        words.insert(0, "diagnose")
    if _version_info.is_asked_for(words):
        return None
    parser = _parser(words[0], words[1] if words[0] == "show" and len(words) > 1 else "")
    own = words[: words.index("--")] if "--" in words else words
    unknown = [word for word in own if word.startswith("--") and word.partition("=")[0] not in flags(parser)]
    if unknown:
        return f"no option {', '.join(unknown)}"
    if line.complete:
        try:
            parser.parse_args(_without_ellipses(words))
        except UsageError as error:
            return str(error)
    return None


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and of the parsers below it."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for below in action.choices.values() for flag in flags(below)}
    return found


def all_flags() -> set[str]:
    names = [command.name for command in commands.COMMANDS]
    return {flag for name in names for flag in flags(commands._parser(name, [name]))}


def existing_names() -> set[str]:
    """Commands, analyses and options."""
    names = {command.name for command in commands.COMMANDS}
    return names | {analysis.name for analysis in analyze.ANALYSES} | all_flags()


@cache
def _parser(command: str, analysis: str) -> argparse.ArgumentParser:
    return commands._parser(command, [command, analysis])


def _looks_like_a_path(code: str) -> bool:
    return bool(_PATH.fullmatch(code)) and ("/" in code or code.endswith(_SOURCE_SUFFIXES))


def _tree(block: str) -> Iterator[str]:
    """Paths of a tree diagram, whose folders end in a slash and whose indentation says what holds what."""
    folders: list[tuple[int, str]] = []
    for line in block.splitlines():
        if not (match := _TREE_LINE.match(line)):
            continue
        indent, name = len(match[1]), match[2]
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        yield "".join(folder for _, folder in folders) + name
        if name.endswith("/"):
            folders.append((indent, name))


def _planned_clauses(text: str) -> Iterator[str]:
    """Clauses that say planned or *later*, and each line below a heading that does."""
    below_heading = False
    for paragraph in re.split(r"\n\s*\n|\n(?=[|*-])", re.sub(r"^#.*$", r"\n\g<0>\n", text, flags=re.M)):
        if paragraph.lstrip().startswith("#"):
            below_heading = bool(_PLANNED.search(paragraph))
        elif below_heading:
            yield paragraph
        else:
            clauses = re.split(r"(?<=[.!?])\s+|;|\|", " ".join(paragraph.split()))
            yield from (clause for clause in clauses if _PLANNED.search(clause))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in a sentence: no command line
        return []


def _calls(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, parted where the shell parts them."""
    call: list[str] = []
    for word in [*words, ";"]:
        if word not in _SHELL_END:
            call.append(word)
        elif call:
            yield call
            call = []


def _without_ellipses(words: list[str]) -> list[str]:
    """`...` behind an option stands for its value, elsewhere for more of the same."""
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        if word != "...":
            kept.append(word)
        elif before.startswith("--"):
            kept.append("value")
    return kept
