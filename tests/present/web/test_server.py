from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose import RULES
from foretrace.diagnose.rule import GPU
from foretrace.present.web import binary, static_files
from foretrace.present.web import library as libraries
from foretrace.present.web import recording_view as views
from foretrace.present.web.library import Library
from foretrace.present.web.resources import timeline as timelines
from foretrace.present.web.server import HEADERS, Server, allowed_hosts, folder_of
from tests.builders import Recording
from tests.present.web.recordings import recording

pytestmark = pytest.mark.slow

PAGE = {"index.html": "<!doctype html><title>page</title>", "app.js": "1", "app.css": "p{}"}


@dataclass
class Answer:
    """One answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Sends requests exactly as they are written, unlike a real one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cookie = f"foretrace-{server.port}={server.token}"
        self.folder = folder_of(server.token).rstrip("/")
        self.host = f"127.0.0.1:{server.port}"

    def ask(
        self, path: str, *, method: str = "GET", folder: str | None = None, **headers: str | None
    ) -> Answer:
        """A request below the server's folder, with the cookie and the right host by default; `None` omits a header."""
        named = {"Host": self.host, "Cookie": self.cookie}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[dict-item]
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.putrequest(
                method,
                (self.folder if folder is None else folder) + path,
                skip_host=True,
                skip_accept_encoding=True,
            )
            for name, value in named.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/api/runs").json["runs"]
        return found

    def wait_for(self, ready: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The runs, as soon as they are as expected."""
        until = time.monotonic() + 60
        while not ready(runs := self.runs()):
            assert time.monotonic() < until, runs
            time.sleep(0.02)
        return runs


def serve(*paths: Path, settle_s: float = 0.3, **options: Any) -> Iterator[Browser]:
    library = Library(paths, cache=False, poll_s=0.05, settle_s=settle_s)
    server = Server(library, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Browser(server)
    finally:
        server.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "static"
    folder.mkdir()
    for name, content in PAGE.items():
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.setattr(static_files, "_folder", lambda: folder)
    return folder


@pytest.fixture
def browser(page: Path, folder: Path) -> Iterator[Browser]:
    yield from serve(recording(folder))


# The probes of the design: each is what a hostile page, machine or link would try.


def test_probe_1_no_token(browser: Browser) -> None:
    answer = browser.ask("/", Cookie=None)
    assert (answer.status, b"token" in answer.body) == (401, True)


def test_probe_2_wrong_token(browser: Browser) -> None:
    assert browser.ask("/?token=guess", Cookie=None).status == 401
    assert browser.ask("/api/runs", Cookie=f"foretrace-{browser.server.port}=guess").status == 401
    assert browser.ask("/?token=%C3%A9", Cookie=None).status == 401


def test_the_cookie_goes_to_no_other_port(browser: Browser) -> None:
    """Browsers send cookies to every port of a host, but only below the folder that they were set in (RFC 6265, 5.1.4)."""
    answer = browser.ask(f"/?token={browser.server.token}", Cookie=None)
    assert "path" not in answer.headers["set-cookie"].lower()
    jar = CookieJar()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(jar)
    )
    with opener.open(browser.server.url, timeout=30) as page:
        assert page.status == 200
    (cookie,) = jar
    assert cookie.path == browser.folder
    request = urllib.request.Request("http://127.0.0.1:1/")
    jar.add_cookie_header(request)
    assert not request.has_header("Cookie")


@pytest.mark.parametrize("outside", ["", "/" + "0" * 24, folder_of("guess").rstrip("/")])
def test_nothing_is_answered_outside_of_the_folder(browser: Browser, outside: str) -> None:
    assert browser.ask("/api/runs", folder=outside).status == 401
    assert browser.ask(f"/?token={browser.server.token}", folder=outside).status == 401


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("br, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("notgzip", False),
        ("", False),
    ],
)
def test_gzip_only_where_it_is_accepted(browser: Browser, accepted: str, packed: bool) -> None:
    answer = browser.ask("/", Accept_Encoding=accepted)
    assert ("content-encoding" in answer.headers) is packed
    assert (answer.body[:2] == b"\x1f\x8b") is packed


def test_probe_3_another_host(browser: Browser) -> None:
    """A name that an attacker resolves to this machine."""
    assert browser.ask("/api/runs", Host=f"evil.example:{browser.server.port}").status == 403
    assert browser.ask("/api/runs", Host=f"127.0.0.1.evil.example:{browser.server.port}").status == 403


def test_probe_4_another_port(browser: Browser) -> None:
    assert browser.ask("/api/runs", Host="127.0.0.1:1").status == 403
    assert browser.ask("/api/runs", Host="127.0.0.1").status == 403


def test_probe_5_another_site(browser: Browser) -> None:
    for site in ("cross-site", "same-site", "nonsense"):
        assert browser.ask("/api/runs", Sec_Fetch_Site=site).status == 403, site
        assert browser.ask(f"/?token={browser.server.token}", Sec_Fetch_Site=site).status == 403, site


def test_probe_6_a_path_that_climbs(browser: Browser) -> None:
    for path in ("/../../etc/passwd", "/static/../app.js", "//etc/passwd", "/api/../app.js"):
        assert browser.ask(path).status == 404, path


def test_probe_7_a_path_that_climbs_in_disguise(browser: Browser) -> None:
    for path in ("/%2e%2e/%2e%2e/etc/passwd", "/%2e%2e%2fapp.js", "/api/runs/%2e%2e%2f%2e%2e/overview"):
        assert browser.ask(path).status == 404, path


def test_probe_8_a_method_that_writes(browser: Browser) -> None:
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert browser.ask("/api/runs", method=method).status == 405, method


def test_probe_9_a_preflight(browser: Browser) -> None:
    answer = browser.ask("/api/runs", method="OPTIONS", Origin="https://evil.example")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_probe_10_the_token_becomes_a_cookie(browser: Browser) -> None:
    answer = browser.ask(f"/perfetto/abc?token={browser.server.token}&x=1", Cookie=None)
    assert answer.status == 303
    assert answer.headers["location"] == "./abc?x=1", "the same path, and nowhere else"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"foretrace-{browser.server.port}={browser.server.token};")
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert browser.ask(f"//evil.example/?token={browser.server.token}").headers["location"] == "./"


def test_probe_11_the_cookie_opens_the_page(browser: Browser) -> None:
    for site in ("none", "same-origin", None):
        answer = browser.ask("/", Sec_Fetch_Site=site)
        assert (answer.status, answer.body.decode()) == (200, PAGE["index.html"])
    assert browser.ask("/app.js").headers["content-type"].startswith("text/javascript")


def test_every_answer_has_the_headers(browser: Browser) -> None:
    run = browser.wait_for(lambda runs: runs[0]["state"] == "ready")[0]["id"]
    paths = ["/", "/api/runs", f"/api/runs/{run}/overview", "/nowhere", f"/api/runs/{run}/nothing"]
    answers = [browser.ask(path) for path in paths]
    answers += [browser.ask("/", Cookie=None), browser.ask("/", Host="evil"), browser.ask("/", method="POST")]
    for answer in answers:
        assert {name.lower(): value for name, value in HEADERS.items()}.items() <= answer.headers.items()
        assert "server" not in answer.headers


def test_the_way_to_perfetto_may_hold_a_window(browser: Browser) -> None:
    run = browser.runs()[0]["id"]
    answer = browser.ask(f"/perfetto/{run}")
    assert answer.status == 200
    assert "cross-origin-opener-policy" not in answer.headers
    assert "'unsafe-inline'" not in answer.headers["content-security-policy"]
    assert b"nothing is uploaded" in answer.body
    events = browser.ask(f"/perfetto/{run}/trace.json").json["traceEvents"]
    assert {"mul_kernel", "Step 1"} <= {event["name"] for event in events}


def test_it_listens_on_this_machine_only(browser: Browser) -> None:
    assert not browser.server.beyond_this_machine
    assert browser.server._socket.getsockname()[0] == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        own = probe.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((own, browser.server.port), timeout=60).close()


def test_listening_everywhere_keeps_the_token(page: Path, folder: Path) -> None:
    for browser in serve(
        recording(folder), host="0.0.0.0", allow_hosts=["proxy.example", "other.example:81"]
    ):
        assert browser.server.beyond_this_machine
        assert browser.ask("/api/runs", Cookie=None).status == 401
        assert browser.ask("/api/runs", Host="proxy.example").status == 200
        assert browser.ask("/api/runs", Host="other.example:81").status == 200
        assert browser.ask("/api/runs", Host="other.example").status == 403


def test_hosts_are_whole() -> None:
    assert allowed_hosts("127.0.0.1", 80, ["Proxy"]) == {
        "127.0.0.1:80", "localhost:80", "[::1]:80", "proxy", "proxy:80",
    }  # fmt: skip


def test_tokens_differ_and_are_long(folder: Path) -> None:
    servers = [Server(Library([recording(folder)])) for _ in range(2)]
    for server in servers:
        server._socket.close()
    assert len({server.token for server in servers}) == 2
    assert all(len(server.token) >= 32 for server in servers), "192 bits are 32 letters of base64"


# What is served.


def test_resources_of_a_run(browser: Browser) -> None:
    run = browser.wait_for(lambda runs: runs[0]["state"] == "ready" and runs[0]["step_ms"] is not None)[0]
    assert (run["name"], run["group"], run["label"]) == ("job.slow", "job", "slow")
    overview = browser.ask(f"/api/runs/{run['id']}/overview").json
    assert overview["headline"]["before_ms"] == run["step_ms"]
    kernels = browser.ask(f"/api/runs/{run['id']}/table/kernels").json
    assert "<script>alert(1)</script>" in json.dumps(kernels["data"])
    assert browser.ask(f"/api/runs/{run['id']}/table/kernels").headers["content-type"] == "application/json"


def test_answers_are_compressed_for_who_reads_it(browser: Browser) -> None:
    answer = browser.ask("/api/runs", Accept_Encoding="gzip, br")
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.body))["schema"] == 1


def test_unknown_things_are_told_in_words(browser: Browser) -> None:
    run = browser.runs()[0]["id"]
    for path, status in (
        ("/api/runs/nope/overview", 404), (f"/api/runs/{run}/nope", 400), (f"/api/runs/{run}/table/nope", 400),
        (f"/api/runs/{run}/compare/nope", 404), (f"/api/runs/{run}/span/nope", 400), ("/perfetto/nope", 404),
        ("/perfetto/nope/trace.json", 404),
    ):  # fmt: skip
        answer = browser.ask(path)
        assert (path, answer.status, bool(answer.json["says"])) == (path, status, True)


def test_what_was_not_recorded_is_an_answer_in_words(browser: Browser) -> None:
    answer = browser.ask(f"/api/runs/{browser.runs()[0]['id']}/table/memory")
    assert (answer.status, answer.headers["foretrace-not-recorded"]) == (200, "1")
    assert "profile_memory" in answer.json["says"]


def test_a_fault_of_ours_is_an_answer_too(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(libraries.payload, "resource", fails)
    answer = browser.ask(f"/api/runs/{browser.runs()[0]['id']}/table/steps")
    assert (answer.status, answer.json["says"]) == (
        500, "internal error: RuntimeError: no luck (please report; set FORETRACE_DEBUG=1 for the traceback)",
    )  # fmt: skip


def test_without_a_page_it_says_how_to_get_one(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_files, "_folder", lambda: tmp_path / "nothing")
    for browser in serve(recording(folder)):
        answer = browser.ask("/")
        assert answer.status == 503
        assert b"pip install --force-reinstall --no-deps ." in answer.body
        assert browser.ask("/app.js").status == 404
        assert browser.ask("/api/runs").status == 200


def test_a_broken_recording_is_a_failed_run(page: Path, folder: Path) -> None:
    broken = folder / "broken.json"
    broken.write_text("not a recording")
    for browser in serve(broken, recording(folder)):
        first, second = browser.wait_for(
            lambda runs: all(run["state"] in ("failed", "ready") for run in runs)
        )
        assert (first["state"], second["state"]) == ("failed", "ready")
        assert "not a recording that Foretrace knows" in first["says"]
        answer = browser.ask(f"/api/runs/{first['id']}/overview")
        assert (answer.status, answer.json["says"]) == (422, first["says"])


def test_a_new_recording_appears_by_itself(page: Path, folder: Path) -> None:
    recording(folder, "a.json")
    (folder / "notes.txt").write_text("no recording")
    for browser in serve(folder):
        assert len(browser.runs()) == 1
        (folder / "later").mkdir()
        recording(folder / "later", "b.json")
        runs = browser.wait_for(lambda runs: len(runs) == 2 and all(run["state"] == "ready" for run in runs))
        assert [(run["group"], run["label"]) for run in runs] == [("recordings", "a"), ("later", "b")]
        (folder / "later" / "b.json").unlink()


def test_a_file_that_grows_is_read_when_it_settles(page: Path, folder: Path) -> None:
    whole = recording(folder, "other.json").read_bytes()
    (folder / "other.json").unlink()
    for browser in serve(folder, settle_s=3600):
        growing = folder / "growing.json"
        for end in range(len(whole) // 2, len(whole), len(whole) // 12):
            growing.write_bytes(whole[:end])
            runs = browser.wait_for(bool)
            assert [(run["state"], run["says"]) for run in runs] == [
                ("waiting", "the file is still being written")
            ]
        growing.write_bytes(whole)
        browser.server.library._settle_s = 0.1
        browser.wait_for(lambda runs: runs[0]["state"] == "ready")


def test_a_file_written_anew_is_read_again(page: Path, folder: Path) -> None:
    path = recording(folder)
    for browser in serve(path):
        run = browser.wait_for(lambda runs: runs[0]["state"] == "ready")[0]["id"]
        before = browser.ask(f"/api/runs/{run}/table/kernels").json
        Recording().step(1, 0, 100).launch(10, "another_kernel", 30, 60).write(folder, path.name)
        until = time.monotonic() + 60
        while (after := browser.ask(f"/api/runs/{run}/table/kernels").json) == before:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert "another_kernel" in json.dumps(after)


def test_recordings_beyond_the_limit_are_read_again_on_demand(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "HELD_BYTES", 1)
    for browser in serve(recording(folder, "a.json"), recording(folder, "b.json")):
        runs = browser.wait_for(lambda runs: all(run["state"] == "ready" for run in runs))
        held = [run.view is not None for run in browser.server.library._all()]
        assert sum(held) <= 1
        for run in runs:
            assert browser.ask(f"/api/runs/{run['id']}/table/operators").status == 200


def test_progress_is_told_while_reading(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(folder)
    go_on = threading.Event()
    real = libraries.open_trace

    def slow(*arguments: Any, progress: Any, **options: Any) -> Any:
        progress(1, 4)
        go_on.wait(60)
        return real(*arguments, progress=progress, **options)

    monkeypatch.setattr(libraries, "open_trace", slow)
    for browser in serve(path):
        run = browser.wait_for(lambda runs: runs[0]["state"] == "loading" and runs[0]["progress_pct"])[0]
        assert (run["progress_pct"], run["says"]) == (25.0, "reading the recording")
        go_on.set()
        browser.wait_for(lambda runs: runs[0]["state"] == "ready")


def test_nothing_waits_for_a_diagnosis_that_does_not_need_it(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recording(folder)
    go_on, asked = threading.Event(), []
    real = views.diagnose

    def slow(*arguments: Any) -> Any:
        asked.append(arguments)
        go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(views, "diagnose", slow)
    for browser in serve(path):
        run = browser.wait_for(lambda runs: runs[0]["state"] == "ready")[0]["id"]
        found: list[Answer] = []

        def ask(browser: Browser, address: str, answers: list[Answer]) -> None:
            answers.append(browser.ask(address))

        whole = (browser, f"/api/runs/{run}/overview", found)
        waiting = [threading.Thread(target=ask, args=whole) for _ in range(3)]
        for each in waiting:
            each.start()
        first = browser.ask(f"/api/runs/{run}/overview?findings=no").json
        fitting = sum(GPU in rule.on for rule in RULES)
        assert first["pending"] == f"{fitting} rules are checking 1 step"
        assert (first["findings"], first["checked"]) == ([], [])
        for quick in (
            "timeline?findings=no",
            "timeline/window?from=0&to=100&px=9&findings=no",
            "table/kernels",
        ):
            assert browser.ask(f"/api/runs/{run}/{quick}").status == 200
        assert not found
        go_on.set()
        for each in waiting:
            each.join(timeout=60)
        assert [answer.json["pending"] for answer in found] == [None] * 3
        # A server of an earlier test may still end its diagnosis.
        assert [case.whole.path for case, *_ in asked].count(path) == 1


def test_a_recording_too_large_to_send_comes_in_windows(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "TILED_ABOVE", 1)
    run = browser.runs()[0]["id"]
    header, _ = binary.unpack(browser.ask(f"/api/runs/{run}/timeline?findings=no").body)
    assert (header["tiled"], header["spans_count"] > 1) == (True, True)
    close = f"from={header['to_ns'] - 15_000}&to={header['to_ns']}&px=1000"
    window, columns = binary.unpack(browser.ask(f"/api/runs/{run}/timeline/window?{close}&findings=no").body)
    assert (window["tiled"], window["spans_count"]) == (True, header["spans_count"])
    assert 0 < len(columns["start"]) < header["spans_count"]
    assert "finding" not in columns
    _, diagnosed = binary.unpack(browser.ask(f"/api/runs/{run}/timeline/window?{close}").body)
    assert len(diagnosed["finding"]) == len(columns["start"])


def test_ranks_of_a_folder_are_shown_together(page: Path, folder: Path) -> None:
    for rank in (0, 1):
        made = Recording(distributedInfo={"rank": rank, "world_size": 2}).step(1, 0, 100)
        made.launch(10, "add_kernel", 30, 60 + rank).write(folder, f"rank{rank}.json")
    for browser in serve(folder):
        runs = browser.wait_for(lambda runs: all(run["state"] == "ready" for run in runs))
        assert browser.ask(f"/api/runs/{runs[1]['id']}/ranks").json["ranks"] == [0, 1]
        compared = browser.ask(f"/api/runs/{runs[0]['id']}/compare/{runs[1]['id']}").json
        assert (compared["a"]["name"], compared["b"]["name"]) == ("rank0", "rank1")
