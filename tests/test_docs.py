"""What the guides show exists: commands parse with these options, links lead somewhere."""

import re
import shlex
from pathlib import Path
from pkgutil import resolve_name

import pytest
from typer.testing import CliRunner

import fedqssl
from fedqssl.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "quickstart.md", DOCS / "ux-tasks.md", *sorted((DOCS / "how-to").glob("*.md"))]
SITE = [*DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md"), *(DOCS / "api").glob("*.md")]
LINKED = [*sorted(SITE), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
COMMANDS = sorted(
    {
        line.split("#")[0].strip()
        for page in PAGES
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.S | re.M)
        for line in block.splitlines()
        if line.startswith("fedqssl ")
    }
)


def test_there_is_something_to_check():
    assert len(PAGES) >= 7 and len(COMMANDS) >= 15


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_these_options(command):
    words = shlex.split(command)[1:]
    depth = 2 if words[0] in ("bench", "deploy") else 1
    found = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    for option in (w for w in words if w.startswith("--")):
        assert option in found.output, option


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_site_lists_every_page():
    """What `make docs` checks too, without its tools."""
    listed = re.findall(r"^ +- (?:\w+: )?([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.M)
    mirrored = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}  # from outside docs/: docs/site_hooks.py
    pages = {page.relative_to(DOCS).as_posix() for page in SITE}
    assert sorted(listed) == sorted(pages | mirrored)


def _named_in_paper_to_code() -> list[str]:
    rows = [line.split(" | ") for line in (DOCS / "paper-to-code.md").read_text().splitlines() if line.startswith("| ")]
    found = [name for row in rows[1:] for name in re.findall(r"`([\w.]+)`", row[1])]
    return sorted({name for name in found if "." in name})


@pytest.mark.parametrize("name", _named_in_paper_to_code())
def test_paper_to_code_names_what_exists(name):
    assert resolve_name(f"fedqssl.{name}") is not None


def test_paper_to_code_names_tests_that_exist():
    text = (DOCS / "paper-to-code.md").read_text()
    named = set(re.findall(r"`(tests/[\w./]+)`", text))
    assert len(named) > 10 and not [name for name in named if not (DOCS.parent / name).exists()]


def test_twenty_tasks_take_two_commands_or_three_lines_each():
    text = (DOCS / "ux-tasks.md").read_text()
    tasks = re.findall(r"^\*\*(\d+)\. [^\n]+\*\*\n\n```(\w*)\n(.*?)^```", text, re.S | re.M)
    assert [int(number) for number, _, _ in tasks] == list(range(1, 21))
    for number, kind, block in tasks:
        lines = block.strip().splitlines()
        assert len(lines) <= (3 if kind == "python" else 2), number
        if kind == "python":
            compile(block, number, "exec")
            assert all(hasattr(fedqssl, name) for name in re.findall(r"fedqssl\.(\w+)", block))
        else:
            assert all(line.startswith("fedqssl ") for line in lines), number
