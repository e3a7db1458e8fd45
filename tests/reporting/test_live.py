"""``fedqssl watch``: a page of a run that is still going, for this machine alone."""

import http.client
import shutil
import threading
from contextlib import contextmanager

import pytest

from commands import cli
from fedqssl.reporting.live import LivePage, server
from fedqssl.reporting.page import build_report
from tiny_run import known_run


@contextmanager
def watched(folder, **settings):
    with server(LivePage(folder, **settings), 0) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        try:
            yield found.server_address[1]
        finally:
            found.shutdown()
            thread.join(20)


def ask(port, path="/", host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), dict(reply.getheaders())


@pytest.fixture
def going(tmp_path):
    """A run that has no result yet."""
    folder = tmp_path / "run"
    shutil.copytree(known_run().folder, folder)
    (folder / "result.json").unlink()
    return folder


def test_the_page_follows_the_run(going):
    with watched(going, seconds=0) as port:
        status, page, headers = ask(port)
        assert status == 200 and "<html" in page and headers["Refresh"] == "0"
        lines = (going / "metrics.jsonl").read_text().splitlines(keepends=True)
        (going / "metrics.jsonl").write_text(lines[0])
        assert ask(port)[1] != page


def test_the_page_says_how_much_time_is_left_and_that_it_renews_itself(going):
    (going / "log.txt").write_text(
        "2026-11-18 11:04:18 round 1/2  loss 4.659  0.3 MiB  36 s left\n2026-11-18 11:04:20 round 2/2  loss 4.5  1.2 h left\n"
    )
    page = build_report(going, going, live=10)
    assert "<dt>time left</dt><dd>about 1.2 h<small>when round 2 ended, 2026-11-18 11:04:20</small>" in page
    assert "renews itself every 10 s" in page and "<body data-live>" in page
    assert "renews itself every" not in build_report(going, going)
    finished = known_run().folder
    assert "time left" not in build_report(finished, finished)


def test_what_was_unfolded_stays_unfolded(going, browser):
    page = browser.new_page()
    page.set_default_timeout(600_000)
    with watched(going, seconds=100) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("summary").nth(1).click()
        page.reload()
        assert page.locator("details").evaluate_all("all => all.map((e) => e.open)")[:3] == [False, True, False]
    page.close()


def test_a_page_is_built_at_most_every_few_seconds(going, monkeypatch):
    built = []
    monkeypatch.setattr("fedqssl.reporting.live.build_report", lambda *a: built.append(a) or "page")
    with watched(going, seconds=100) as port:
        assert [ask(port)[1] for _ in range(3)] == ["page"] * 3
    assert len(built) == 1


def test_only_this_machine_and_only_this_page(going):
    with watched(going, seconds=100) as port:
        assert ask(port, host="evil.example")[0] == 421  # a page elsewhere cannot read it by a name of its own
        assert ask(port, "/../config.toml")[0] == 404
        assert ask(port, method="POST")[0] == 501


def test_what_cannot_be_read_is_said_on_the_page(going):
    (going / "config.toml").write_text("rounds = <script>")
    with watched(going, seconds=0) as port:
        status, page, _ = ask(port)
    assert status == 200 and "is not a TOML file" in page and "<script>" not in page


def test_errors_before_it_starts(tmp_path, capsys, going):
    assert "is not a folder" in cli(capsys, "watch", tmp_path / "none", code=2)
    with watched(going) as port:
        assert f"port {port} cannot be used" in cli(capsys, "watch", going, "--port", str(port), code=2)
