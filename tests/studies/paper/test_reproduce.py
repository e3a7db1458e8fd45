"""``fedqssl reproduce`` for real, at scale ``smoke``: every file, and the same tables after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_runs import fake_run
from fedqssl.cli.main import app
from fedqssl.runs import run_cells
from fedqssl.studies.paper.catalogue import FIGURES, TABLES

pytest.importorskip("matplotlib")
runner = CliRunner()


def children(pid: int) -> set[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return {int(text) for text in found.read_text().split()} if found.exists() else set()


def killed(folder: Path) -> None:
    """Kill -9 a reproduction with two jobs when a cell is done and another begun; its processes end with it."""
    command = [sys.executable, "-m", "fedqssl.cli.main", "reproduce", "table_low", "--scale", "smoke", "--jobs", "2"]
    process = subprocess.Popen([*command, "--out", str(folder)], stdout=subprocess.DEVNULL)
    cells = folder / "cells"
    deadline = time.monotonic() + 1500  # of a busy machine
    while time.monotonic() < deadline and process.poll() is None:
        done = {path.parent.name for path in cells.glob("*/result.json")}
        begun = {path.parent.name for path in cells.glob("*/config.toml")} - done
        if done and begun:
            break
        time.sleep(0.02)
    workers = children(process.pid)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL and len(workers) >= 2 and len(done) < 4
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.02)


def made(folder: Path, *names: str, more=()) -> None:
    result = runner.invoke(app, ["reproduce", *names, "--scale", "smoke", "--out", str(folder), *more])
    assert result.exit_code == 0, result.output


def points(folder: Path, figure: str) -> list[dict]:
    found: list[dict] = json.loads((folder / f"{figure}.json").read_text())["points"]
    return found


def check_everything(folder: Path) -> None:
    """Every table and figure in every form."""
    wanted = {f"{name}.{ending}" for name in TABLES for ending in ("json", "md", "csv", "tex")}
    wanted |= {f"{name}.{ending}" for name in FIGURES for ending in ("json", "md", "csv", "tex", "png", "svg")}
    assert {path.name for path in folder.iterdir() if path.is_file()} == wanted | {"cells.csv"}
    for name, table in TABLES.items():
        found = json.loads((folder / f"{name}.json").read_text())
        assert [(r["algorithm"], r["precision"]) for r in found["rows"]] == [
            (r.algorithm, r.precision) for r in table.rows
        ]
        assert all(0 <= r[key] <= 100 and r["seeds"] == 1 for r in found["rows"] for key in ("global", "local"))
        assert found["scale"] == "smoke" and not found["missing"] and "4 clients" in found["protocol"]
    for name in FIGURES:
        assert len(points(folder, name)) >= 3
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    cost = {p["precision"]: p for p in points(folder, "figure1")}
    assert cost["config1"]["total"] < cost["config2"]["total"] < cost["full"]["total"] == cost["full"]["full_precision"]
    assert cost["config1"]["backward"] > cost["config1"]["forward"]
    check_server_work(folder)


def check_server_work(folder: Path) -> None:
    work = points(folder, "figure_server")
    spent = {(p["algorithm"], p["server.dequantize_epochs"]): p["server_operations"] for p in work}
    assert spent["fed_qssl", 1] < spent["fed_qssl", 4]
    assert spent["server_only", 4] == pytest.approx(spent["fed_qssl", 4], rel=0.1)  # but for the averaging


def test_all_from_made_up_runs(tmp_path, monkeypatch):
    """The slow test below does the same with real ones."""
    ran = []

    def start(config, folder, *, progress, as_written):
        ran.append(folder.name)
        fake_run(folder, config, 0.1 + len(ran) / 100)

    monkeypatch.setattr(run_cells, "start", start)
    made(tmp_path, "all")
    assert len(ran) == len(set(ran)) > 30
    check_everything(tmp_path)


@pytest.mark.slow
def test_all_at_scale_smoke(tmp_path):
    began = time.process_time()
    made(tmp_path, "all")
    assert time.process_time() - began < 600
    check_everything(tmp_path)


def test_the_same_table_after_a_kill(tmp_path):
    """Real runs, of a table and of a figure that shares none of its cells; the table again, killed and resumed."""
    made(tmp_path / "whole", "table_low", "figure_server")
    check_server_work(tmp_path / "whole")
    rows = json.loads((tmp_path / "whole" / "table_low.json").read_text())["rows"]
    assert len(rows) == 4 and all(0 <= r[key] <= 100 for r in rows for key in ("global", "local"))
    killed(tmp_path / "killed")
    made(tmp_path / "killed", "table_low")
    for ending in ("json", "md", "csv", "tex"):
        name = f"table_low.{ending}"
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    before = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "killed" / "cells").glob("*/result.json")}
    made(tmp_path / "killed", "table_low")
    assert before == {path: os.stat(path).st_mtime_ns for path in before}

    (tmp_path / "killed" / "table_low.md").unlink()
    made(tmp_path / "killed", "all", more=["--collect"])
    name = "table_low.md"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert before == {path: os.stat(path).st_mtime_ns for path in before}
    assert {path.name for path in (tmp_path / "killed" / "cells").glob("*/")} == {path.parent.name for path in before}


def test_collecting_where_nothing_is_done_says_so(tmp_path):
    result = runner.invoke(app, ["reproduce", "table1", "--scale", "smoke", "--collect", "--out", str(tmp_path / "no")])
    assert result.exit_code != 0 and "none of the requested runs" in str(result.exception)
    assert not (tmp_path / "no").exists()
