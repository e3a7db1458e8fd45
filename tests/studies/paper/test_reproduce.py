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

from fedqssl.cli.main import app
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


def test_all_at_scale_smoke_and_the_same_after_a_kill(tmp_path):
    began = time.process_time()
    result = runner.invoke(app, ["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path / "all")])
    assert result.exit_code == 0, result.output
    assert time.process_time() - began < 600
    wanted = {f"{name}.{ending}" for name in TABLES for ending in ("json", "md", "csv", "tex")}
    wanted |= {f"{name}.{ending}" for name in FIGURES for ending in ("json", "md", "csv", "tex", "png", "svg")}
    files = {path.name for path in (tmp_path / "all").iterdir() if path.is_file()}
    assert files == wanted | {"cells.csv"}
    for name, table in TABLES.items():
        found = json.loads((tmp_path / "all" / f"{name}.json").read_text())
        assert [(r["algorithm"], r["precision"]) for r in found["rows"]] == [
            (r.algorithm, r.precision) for r in table.rows
        ]
        assert all(0 <= r[key] <= 100 and r["seeds"] == 1 for r in found["rows"] for key in ("global", "local"))
        assert found["scale"] == "smoke" and not found["missing"] and "4 clients" in found["protocol"]
    for name in FIGURES:
        found = json.loads((tmp_path / "all" / f"{name}.json").read_text())
        assert len(found["points"]) >= 3
        assert (tmp_path / "all" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    cost = {p["precision"]: p for p in json.loads((tmp_path / "all" / "figure1.json").read_text())["points"]}
    assert cost["config1"]["total"] < cost["config2"]["total"] < cost["full"]["total"] == cost["full"]["full_precision"]
    assert cost["config1"]["backward"] > cost["config1"]["forward"]
    work = json.loads((tmp_path / "all" / "figure_server.json").read_text())["points"]
    spent = {(p["algorithm"], p["server.dequantize_epochs"]): p["server_operations"] for p in work}
    assert spent["fed_qssl", 1] < spent["fed_qssl", 4]
    assert spent["server_only", 4] == pytest.approx(spent["fed_qssl", 4], rel=0.1)  # but for the averaging

    killed(tmp_path / "killed")
    again = ["reproduce", "table_low", "--scale", "smoke", "--out", str(tmp_path / "killed")]
    result = runner.invoke(app, again)
    assert result.exit_code == 0, result.output
    for ending in ("json", "md", "csv", "tex"):
        name = f"table_low.{ending}"
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    before = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "killed" / "cells").glob("*/result.json")}
    assert runner.invoke(app, again).exit_code == 0
    assert before == {path: os.stat(path).st_mtime_ns for path in before}

    (tmp_path / "killed" / "table_low.md").unlink()
    result = runner.invoke(app, ["reproduce", "all", *again[2:], "--collect"])
    assert result.exit_code == 0, result.output
    name = "table_low.md"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    assert before == {path: os.stat(path).st_mtime_ns for path in before}
    assert {path.name for path in (tmp_path / "killed" / "cells").glob("*/")} == {path.parent.name for path in before}


def test_collecting_where_nothing_is_done_says_so(tmp_path):
    result = runner.invoke(app, ["reproduce", "table1", "--scale", "smoke", "--collect", "--out", str(tmp_path / "no")])
    assert result.exit_code != 0 and "none of the requested runs" in str(result.exception)
    assert not (tmp_path / "no").exists()
