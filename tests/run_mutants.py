"""Make the deliberate slips of ``mutants.toml`` one at a time and see that the tests notice: ``make mutants``.

Every slip is made in a copy of ``src`` and ``tests``; the checkout is never touched. First the named tests must pass without any
slip, so that a test that fails anyway counts for nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
PYTEST = ("-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
NOTICED, SKIPPED = "noticed", "skipped"


@dataclass(frozen=True)
class Slip:
    """One deliberate slip.

    Args:
        slip: what goes wrong, in a few words.
        file: below ``src/fedqssl``.
        text: occurs exactly once in the file.
        becomes: what takes its place.
        tests: files or ids of tests below ``tests``, at least one of which must fail.
    """

    slip: str
    file: str
    text: str
    becomes: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        return f"src/fedqssl/{self.file}"

    def made_in(self, code: str) -> str:
        """The file's text with the slip.

        Raises:
            ValueError: the list is out of date.
        """
        if code.count(self.text) != 1:
            raise ValueError(f"the text occurs {code.count(self.text)} times in {self.path}: update tests/mutants.toml")
        if self.becomes == self.text:
            raise ValueError("the text becomes itself")
        return code.replace(self.text, self.becomes)


def read_slips(path: Path = LIST) -> list[Slip]:
    """All slips of the list, in its order."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["slips"]
    return [Slip(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_of_the_tree(into: Path) -> Path:
    """What the tests need, below a new folder."""
    forget = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, into / name, ignore=forget)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, into / name)
    for name in ("docs", "examples"):
        (into / name).symlink_to(ROOT / name)
    return into


def run_tests(tree: Path, tests: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Pytest's exit code (None: not finished within ``limit`` seconds) and what it printed."""
    surroundings = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "pytest", *PYTEST, *(f"tests/{test}" for test in tests)]
    with subprocess.Popen(
        command, cwd=tree, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[0]
    return process.returncode, output


def _forget_compiled(file: Path) -> None:
    """Two versions of a file within a second could be taken for one."""
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def judge(slip: Slip, tree: Path, limit: float) -> tuple[str, str]:
    """What became of a slip, and what pytest printed."""
    file = tree / slip.path
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(slip.made_in(before), encoding="utf-8")
    except ValueError as error:
        return f"STALE: {error}", ""
    _forget_compiled(file)
    try:
        code, output = run_tests(tree, slip.tests, limit)
    finally:
        file.write_text(before, encoding="utf-8")
        _forget_compiled(file)
    if code is None:
        return f"TIMED OUT after {limit:g} s", output
    if code == 1 or code < 0:  # a test failed, or the slip ended the process
        return NOTICED, output
    if code == 0:
        return ("SURVIVED" if re.search(r"\d+ passed", output) else SKIPPED), output
    return f"BROKEN: pytest ended with {code}", output


def passes_without(slips: Sequence[Slip], tree: Path, limit: float) -> bool:
    """Whether all named tests pass as the code is."""
    tests = list(dict.fromkeys(test for slip in slips for test in slip.tests))
    code, output = run_tests(tree, tests, limit * max(len(tests), 1))
    if code in (0, 5):
        return True
    print(output)
    print("these tests must pass before a slip is made")
    return False


def judge_all(slips: Sequence[Slip], jobs: int, limit: float, verbose: bool) -> bool:
    """Judge slips in as many copies at a time; whether no slip survived."""
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    found: Counter[str] = Counter()

    def one(slip: Slip) -> tuple[str, str, float]:
        tree, began = trees.get(), time.monotonic()
        try:
            return *judge(slip, tree, limit), time.monotonic() - began
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="fedqssl-mutants-") as folder, ThreadPoolExecutor(jobs) as workers:
        for number in range(jobs):
            trees.put(copy_of_the_tree(Path(folder) / str(number)))
        first = trees.get()
        if not passes_without(slips, first, limit):
            return False
        trees.put(first)
        for slip, (verdict, output, seconds) in zip(slips, workers.map(one, slips), strict=True):
            found[verdict] += 1
            print(f"{verdict:9} {seconds:5.0f} s  {slip.file}: {slip.slip}", flush=True)
            if verbose and verdict != NOTICED:
                print(output, flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in found.most_common()))
    return set(found) <= {NOTICED, SKIPPED}


def main() -> int:
    """Judge the slips that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="", help="slips whose file or description matches")
    parser.add_argument("--jobs", type=int, default=2, help="slips at a time, each in a copy of its own (2)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one slip (300)")
    parser.add_argument("--verbose", action="store_true", help="show pytest's output for slips that were not noticed")
    options = parser.parse_args()
    slips = [slip for slip in read_slips() if re.search(options.only, f"{slip.file}: {slip.slip}")]
    if not slips or options.jobs < 1:
        parser.error("no slip matches" if not slips else "--jobs must be at least 1")
    return 0 if judge_all(slips, options.jobs, options.limit, options.verbose) else 1


if __name__ == "__main__":
    sys.exit(main())
