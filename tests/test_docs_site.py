"""The documentation site: output on its pages is what commands print, and what its build checks would be noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foretrace import ingest
from scripts import build_docs, fill_pages

ROOT = Path(__file__).parents[1]
TUTORIALS = [page for page in fill_pages.PAGES if page.parent.name == "tutorials" and page.stem != "README"]


@pytest.mark.slow
@pytest.mark.parametrize("page", fill_pages.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fill_pages.main(["--check", str(page)]) == 0, capsys.readouterr().out


def test_every_tutorial_has_output_and_is_listed() -> None:
    listed = (ROOT / "docs" / "tutorials" / "README.md").read_text(encoding="utf-8")
    assert len(TUTORIALS) == 5
    for page in TUTORIALS:
        assert f"]({page.name})" in listed
        assert len(fill_pages.OUTPUT.findall(page.read_text(encoding="utf-8"))) >= 3, page.name


def test_what_was_altered_by_hand_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number in a command's output, in a measured figure, and in a part copied from another page."""
    page = tmp_path / "page.md"
    page.write_text(
        "Measured: <!-- measured: loader_serial -->× 9.99<!-- end -->\n\n"
        "<!-- copied from docs/benchmarks.md: sums -->\n| made up |\n<!-- end of copy -->\n\n"
        "```console\n$ foretrace explain aten::mm | sed -n '1,2p'\nmade up\n```\n",
        encoding="utf-8",
    )
    assert fill_pages.main(["--check", str(page)]) == 1
    shown = capsys.readouterr().out
    assert "-Measured: <!-- measured: loader_serial -->× 9.99<" in shown
    assert "-| made up |" in shown
    assert "-made up" in shown
    assert fill_pages.main([str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "× 4.74, from 16.8 ms to 3.54 ms a step" in text
    assert "| fp32 += fp32 | 10.0001 |" in text
    assert "$ foretrace explain aten::mm | sed -n '1,2p'\naten::mm\n" in text
    assert fill_pages.main(["--check", str(page)]) == 0


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        (("1", "2"), ["a", "b 1"]),
        (("/b/", "/d/"), ["b 1", "c", "d"]),
        (("/^c/", "4"), ["c", "d"]),
        (("/nowhere/", "4"), []),
        (("/b 1/", "/nowhere/"), []),
    ],
)
def test_lines_are_chosen_by_number_or_words(addresses: tuple[str, str], chosen: list[str]) -> None:
    assert fill_pages.selected(["a", "b 1", "c", "d", "b 2"], *addresses) == chosen


def test_the_first_page_names_every_tool_whose_files_are_read() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    makers = {kind.made_by for kind in ingest.formats() if kind.made_by}
    tools = {re.split(r"[ ,(]", maker)[0].removesuffix(".start").removesuffix(".trace") for maker in makers}
    assert {"nsys", "torch.profiler", "jax.profiler"} <= tools
    assert {tool for tool in tools if f"`{tool}`" not in page} == set()


def test_the_navigation_leads_to_every_page() -> None:
    """Pages of folders that are left out of it are on the page that lists them."""
    pages = build_docs.pages()
    reached = [name for _, names in build_docs.navigation(set(pages.values())) for name in names]
    assert len(reached) == len(set(reached))
    for page, target in pages.items():
        listing = build_docs.LISTED.get(Path(target).parent.as_posix())
        if target == "index.md" or target.removesuffix(".md") in reached:
            continue
        assert listing, f"{page}: add its folder to NAVIGATION"
        source = next(name for name, site in pages.items() if site == listing)
        text = (ROOT / source).read_text(encoding="utf-8")
        assert f"{Path(page).name})" in text or f"{Path(page).name}#" in text, (
            f"{source} does not list {page}"
        )


def test_a_new_guide_page_needs_no_entry() -> None:
    chapters = dict(build_docs.navigation({*build_docs.pages().values(), "guide/zebra.md"}))
    assert chapters["Guide"][0] == "guide/reading"
    assert "guide/zebra" in chapters["Guide"]


def test_a_link_of_a_page_that_leads_nowhere_fails(tmp_path: Path) -> None:
    staging = build_docs.Staging(tmp_path, build_docs.pages())
    page = "docs/guide/record.md"
    text = "[a](trust.md#x) [b](nowhere.md) `[c](code.md)` [d](../../examples/slow_model.py) [e](../../README.md)"
    assert staging._relinked(page, text) == (
        "[a](trust.md#x) [b](nowhere.md) `[c](code.md)` [d](../files/examples/slow_model.py.txt) [e](../readme.md)"
    )
    assert staging.broken == [f"{page}: nowhere.md leads nowhere"]
    with pytest.raises(build_docs.BrokenPage, match=r"nowhere\.md"):
        staging.write()


def test_faults_of_a_built_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">ok</a> <a href="b.html#there">ok</a> <a href="https://example.org">not visited</a>'
        '<a href="#gone">x</a> <a href="b.html#gone">x</a> <a href="c.html">x</a>'
        '<script src="https://cdn.example/x.js"></script><img src="//cdn.example/y.png">'
        '<link rel="stylesheet" href="site.css">',
        encoding="utf-8",
    )
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1>', encoding="utf-8")
    (tmp_path / "site.css").write_text("@import url(https://fonts.example/z.css)", encoding="utf-8")
    assert build_docs.faults(tmp_path) == [
        "a.html: #gone has no such anchor",
        "a.html: b.html#gone has no such anchor",
        "a.html: c.html leads nowhere",
        "a.html: loads //cdn.example/y.png",
        "a.html: loads https://cdn.example/x.js",
        "site.css: loads https://fonts.example/z.css",
    ]
