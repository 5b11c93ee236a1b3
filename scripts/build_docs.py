"""Builds the documentation site from the Markdown of this repository, for reading offline: HTML, the Markdown beside it, llms.txt.

python scripts/build_docs.py [FOLDER]         into FOLDER, or build/docs; needs `pip install -e '.[docs]'`
python scripts/build_docs.py --requirements   prints what it needs, for pip install -r

Fails where a link or an anchor leads nowhere, or where a page would load something from elsewhere. Addresses of other
sites are not visited.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
THEME = ROOT / "docs" / "site"
# Where pages outside of docs/ stand on the site; others of the first folder stand in project/.
OTHER_PAGES = {
    "README.md": "readme.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
# The order of the navigation. Pages of a folder that are not named here follow by name: a new page needs no entry.
FIRST = {
    "tutorials": ("matmul-add", "first-optimisation", "four-cases", "six-steps", "labelled-gpt"),
    "guide": ("reading", "record", "page", "trust", "predict", "try", "compare", "memory", "ranks", "bench"),
}
NAVIGATION = (
    ("Tutorials", "tutorials/"),
    ("Guide", "guide/"),
    ("Reference", "readme reference/analyses reference/tables reference/python reference/ rules/index"),
    ("Background", "accuracy benchmarks peers examples"),
    ("Project", "project/ decisions/index"),
)
# Folders whose pages are not in the navigation, where they would be most of it: the page that lists them.
LISTED = {
    "rules": "rules/index.md",
    "decisions": "decisions/index.md",
    "reference/analyses": "reference/analyses.md",
    "tutorials/recordings": "tutorials/index.md",
}
TITLES = {
    "readme": "Every command (README)",
    "examples": "Example programs",
    "tutorials/index": "Which tutorial?",
    "rules/index": "Rules of diagnose",
    "decisions/index": "Decisions",
    "project/benchmarks": "How it is measured",
}
CODE = re.compile(r"^(```.*?^```$)|(`+)(?:(?!\2).)+?\2(?!`)", re.M | re.S)
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


class BrokenPage(Exception):
    """A page that cannot be built as it is."""


def site_path(page: str) -> str:
    """Where a page of the repository stands on the site."""
    if page in OTHER_PAGES:
        return OTHER_PAGES[page]
    if "/" not in page:
        return f"project/{page.lower()}"
    return re.sub(r"(^|/)README\.md$", r"\1index.md", page.removeprefix("docs/"))


def pages() -> dict[str, str]:
    """Every page of the site: its path in the repository, its path on the site."""
    files = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    found = [path.relative_to(ROOT).as_posix() for path in files]
    return {page: site_path(page) for page in [*found, *OTHER_PAGES]}


@dataclass
class Staging:
    """The pages as Sphinx reads them, with links as they are on the site."""

    folder: Path
    pages: dict[str, str]
    files: set[str] = field(default_factory=set)  # other files that pages link to
    broken: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Writes every page and what it links to."""
        for page, target in self.pages.items():
            text = self._relinked(page, (ROOT / page).read_text(encoding="utf-8"))
            path = self.folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if self.broken:
            raise BrokenPage("\n".join(self.broken))
        for name in sorted(self.files):
            path = self.folder / _file_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path)

    def _relinked(self, page: str, text: str) -> str:
        """The page with its links to the repository's files as links on the site; code is left alone."""
        parts, end = [], 0
        for code in CODE.finditer(text):
            parts += [self._relinked_prose(page, text[end : code.start()]), code[0]]
            end = code.end()
        return "".join([*parts, self._relinked_prose(page, text[end:])])

    def _relinked_prose(self, page: str, text: str) -> str:
        return LINK.sub(lambda link: self._target(page, link[0]), text)

    def _target(self, page: str, link: str) -> str:
        if urlsplit(link).scheme or link.startswith("#"):
            return link
        path, mark, anchor = link.partition("#")
        name = os.path.normpath(os.path.join(os.path.dirname(page), path)).replace(os.sep, "/")
        if name in self.pages:
            target = self.pages[name]
        elif f"{name}/README.md" in self.pages:
            target = self.pages[f"{name}/README.md"]
        elif (ROOT / name).is_file() and not name.startswith(".."):
            self.files.add(name)
            target = _file_path(name)
        else:
            self.broken.append(f"{page}: {link} leads nowhere")
            return link
        here = os.path.dirname(self.pages[page])
        return os.path.relpath(target, here or ".").replace(os.sep, "/") + mark + anchor


def _file_path(name: str) -> str:
    """Where a file that is no page stands on the site; sources as text, which browsers show."""
    if name.startswith("docs/images/"):
        return name.removeprefix("docs/")
    return f"files/{name}" if Path(name).suffix in (".txt", ".html", ".svg", ".png") else f"files/{name}.txt"


def navigation(targets: set[str]) -> list[tuple[str, list[str]]]:
    """Captions with their pages, in order: those named first, then the rest of a folder by name."""
    names = {target.removesuffix(".md") for target in targets}
    taken: set[str] = {"index"}
    chapters = []
    for caption, entries in NAVIGATION:
        listed: list[str] = []
        for entry in entries.split():
            if entry.endswith("/"):
                folder = entry.removesuffix("/")
                first = [f"{folder}/{name}" for name in ("index", *FIRST.get(folder, ()))]
                rest = sorted(name for name in names if str(PurePosixPath(name).parent) == folder)
                listed += [name for name in (*first, *rest) if name in names]
            else:
                listed.append(entry)
        kept = list(dict.fromkeys(name for name in listed if name not in taken))
        taken.update(kept)
        chapters.append((caption, kept))
    return chapters


def write_navigation(staging: Staging) -> None:
    """Adds the navigation to the first page, and a way back to the pages that are not in it."""
    added = dict.fromkeys(staging.pages.values(), "")
    for caption, names in navigation(set(added)):
        entries = "\n".join(f"{TITLES[name]} </{name}>" if name in TITLES else f"/{name}" for name in names)
        added["index.md"] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"
    for page in added:
        listing = LISTED.get(os.path.dirname(page))
        if listing and listing != page:
            added[page] = f"\n[Back to the list]({os.path.relpath(listing, os.path.dirname(page))})\n"
    for page, text in added.items():
        with (staging.folder / page).open("a", encoding="utf-8") as file:
            file.write(text)


def run_sphinx(source: Path, out: Path) -> None:
    """Builds the HTML; any warning fails."""
    for name in ("conf.py", "_static"):
        origin = THEME / name
        (shutil.copytree if origin.is_dir() else shutil.copyfile)(origin, source / name)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-j", "auto"]
    environment = os.environ | {"FORETRACE_VERSION": _version()}
    with tempfile.TemporaryDirectory() as trees:
        done = subprocess.run(
            [*command, "-d", trees, str(source), str(out)],
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        raise BrokenPage("Sphinx complained; see above")


def _version() -> str:
    text = (ROOT / "src" / "foretrace" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else ""


def summary(text: str) -> str:
    """The first sentence of a page's prose."""
    prose = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.M | re.S)
    paragraphs = [each.strip() for each in prose.split("\n\n")]
    first = next(
        (each for each in paragraphs if each and not each.startswith(("#", "|", "!", "- ", "    "))), ""
    )
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.?!]) ", plain)[0]


def title(name: str, text: str) -> str:
    """What a page is called: its first heading."""
    found = re.search(r"^# (.+)$", text, re.M)
    return TITLES.get(name) or (found[1].replace("`", "") if found else name)


def write_markdown(staging: Staging, texts: dict[str, str], out: Path) -> None:
    """Writes the Markdown beside each page, and llms.txt, which lists it."""
    for target, text in texts.items():
        (out / target).write_text(text, encoding="utf-8")
    for name in staging.files:
        path = out / _file_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
    chapters = navigation(set(texts))
    chapters += [("Rules", sorted(name for name in _names(texts, "rules/") if name != "rules/index"))]
    chapters += [("Analyses", sorted(_names(texts, "reference/analyses/")))]
    lines = [f"# {title('index', texts['index.md'])}", "", f"> {summary(texts['index.md'])}", ""]
    lines += [
        "Every page is here as Markdown. Paths are relative to this file.",
        "",
        "- [First page](index.md)",
        "",
    ]
    for caption, names in chapters:
        entries = [(title(name, texts[f"{name}.md"]), name, summary(texts[f"{name}.md"])) for name in names]
        lines += [
            f"## {caption}",
            "",
            *(f"- [{page}]({name}.md): {says}" for page, name, says in entries),
            "",
        ]
    (out / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _names(texts: dict[str, str], folder: str) -> list[str]:
    return [target.removesuffix(".md") for target in texts if target.startswith(folder)]


def finish_page(path: Path) -> None:
    """Makes boxes that scroll reachable by keyboard, gives headings of the navigation a level, and links the page's Markdown."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<pre(?=>| )", '<pre tabindex="0"', text)
    text = text.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    text = text.replace('class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"')
    markdown = path.with_suffix(".md")
    if markdown.exists():
        link = f'<link rel="alternate" type="text/markdown" href="{markdown.name}">'
        text = text.replace("</head>", f"{link}</head>", 1)
        note = f'<p class="as-markdown"><a href="{markdown.name}">This page as Markdown</a></p>'
        text = text.replace("</article>", f"{note}</article>", 1)
    path.write_text(text, encoding="utf-8")


class Links(html.parser.HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.leads_to.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") not in ("canonical",):
            self.loads.append(given["href"])
        self.loads += [given[name] for name in ("src", "poster", "data") if given.get(name)]
        self.loads += [each.split()[0] for each in given.get("srcset", "").split(",") if each.strip()]


def faults(out: Path) -> list[str]:
    """Links and anchors of the built site that lead nowhere, and what pages would load from elsewhere."""
    parsed = {path.resolve(): Links(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}
    found = []
    for path, links in parsed.items():
        page = path.relative_to(out.resolve()).as_posix()
        found += [
            f"{page}: loads {each}" for each in links.loads if urlsplit(each).scheme not in ("", "data")
        ]
        found += [f"{page}: loads {each}" for each in links.loads if each.startswith("//")]
        for link in [*links.leads_to, *links.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{page}: {link} leads nowhere")
            elif (
                parts.fragment
                and target in parsed
                and unquote(parts.fragment) not in parsed[target].anchors | {""}
            ):
                found.append(f"{page}: {link} has no such anchor")
    for path in out.rglob("*.css"):
        loaded = re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", path.read_text(encoding="utf-8"))
        found += [f"{path.name}: loads {each}" for each in loaded]
    return sorted(set(found))


def build(out: Path) -> int:
    """Builds the site; the number of its pages."""
    with tempfile.TemporaryDirectory() as folder:
        staging = Staging(Path(folder), pages())
        staging.write()
        texts = {name: (staging.folder / name).read_text(encoding="utf-8") for name in staging.pages.values()}
        write_navigation(staging)
        shutil.rmtree(out, ignore_errors=True)
        run_sphinx(staging.folder, out)
        write_markdown(staging, texts, out)
    for path in out.rglob("*.html"):
        finish_page(path)
    if wrong := faults(out):
        raise BrokenPage("\n".join(wrong))
    return len(texts)


def main(arguments: list[str]) -> int:
    """Builds the site; the exit code."""
    if arguments == ["--requirements"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        print("\n".join(project["optional-dependencies"]["docs"]))
        return 0
    out = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    try:
        count = build(out)
    except BrokenPage as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} pages in {out}: open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
