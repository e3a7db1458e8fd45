"""What README.md and docs/usage.md show works: their Python is run, their commands are run (long ones at smoke size)."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedqssl.cli.main import app
from fedqssl.config import load_config, to_toml
from fedqssl.data.scenes import scenes

ROOT = Path(__file__).parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/usage.md")}
BLOCKS = [block for text in PAGES.values() for block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)]
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
SHELL = list(
    dict.fromkeys(  # what both pages show is run once
        command.strip()
        for kind, text in BLOCKS
        if not kind
        for line in text.splitlines()
        for command in line.split("#")[0].split(" ; ")
        if command.strip().startswith("fedqssl ")
    )
)


TINY = [
    "model=small_cnn",
    "width=4",
    "images=200",
    "rounds=1",
    "batch_size=16",
    "workers=1",
    "evaluation.probe_images=60",
]


def test_there_is_something_to_check():
    assert len(PYTHON) == 2 and len(SHELL) >= 30


@pytest.mark.parametrize("code", PYTHON, ids=["run", "lowbit"])
def test_python(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = load_config("smoke", TINY)
    Path("small.toml").write_text(to_toml(small))
    names: dict[str, object] = {}
    exec(code.replace('"quickstart"', '"small.toml"'), names)
    assert "run" in names or "copy" in names


@pytest.mark.parametrize("command", SHELL)
def test_commands_exist_with_these_options(command):
    words = shlex.split(command)[1:]
    depth = 2 if words[0] in ("bench", "deploy") else 1
    help_text = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert help_text.exit_code == 0
    for option in (w for w in words if w.startswith("--")):
        assert option in help_text.output, option


SHRUNK = {
    "rounds=5": "rounds=1",
    "'seed=0;1;2'": "'seed=0'",
    "--scale smoke": "--scale smoke --only untrained",
    "theory all": "theory lemma1 --bits 2,4 --seeds 2 --rounds 10",
    "plan cifar10-paper --detail": "plan cifar10-paper --detail --no-measure",
}
"""What takes minutes is made to take seconds."""
FEW_STEPS = [
    "clients=2",
    "bits=4,8",
    "width=4",
    "rounds=1",
    "local_steps=1",
    "server.steps=2",
    "batch_size=8",
    "workers=1",
]
ELSEWHERE = {
    "fedqssl demo": "cli/test_demo.py",
    "fedqssl bench": "studies/bench/test_bench_smoke.py",
    "fedqssl deploy": "deploy/test_deployment.py",
    "fedqssl run quickstart --engine flower-sim": "engines/test_flower_simulation.py",
    "fedqssl serve": "serve/test_service.py",
}
"""Commands that need servers or minutes are run by these tests."""


def shrunk(command: str) -> list[str]:
    """The words of a command at smoke size."""
    for long, short in SHRUNK.items():
        command = command.replace(long, short)
    words = shlex.split(command)[1:]
    if words[0] in ("run", "sweep", "plan") and "quickstart" in words:
        at = words.index("quickstart")
        given = {word.split("=")[0] for word in words if "=" in word}
        words[at : at + 1] = ["smoke", *(word for word in TINY if word.split("=")[0] not in given)]
    return [*words, *FEW_STEPS] if words[:2] == ["run", "photos"] else words


def test_commands_run(tmp_path, monkeypatch):
    """In the order of the pages, each with what the ones before it left."""
    monkeypatch.chdir(tmp_path)
    settings = [
        f"{key} = {value if value.isdigit() else repr(value)}" for key, value in (w.split("=") for w in TINY[:-1])
    ]
    Path("my.toml").write_text("\n".join(["clients = 2", "bits = [4, 8]", *settings]) + "\n")
    Path("devices.toml").write_text("[default]\nmemory = 1e9\n")
    Path("photos").mkdir()
    images = scenes(60).images.permute(0, 2, 3, 1).numpy()
    for i, pixels in enumerate(images):
        Path(f"my-photos/{i % 2}").mkdir(parents=True, exist_ok=True)
        for path in [f"my-photos/{i % 2}/{i}.png", *([f"photos/{i}.png"] if i < 3 else [])]:
            pytest.importorskip("PIL.Image").fromarray(pixels).save(path)
    for command in SHELL:
        if any(command.startswith(start) for start in ELSEWHERE):
            continue
        words = shrunk(command)
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        assert result.exit_code == 0, f"{words}: {result.output} {result.exception}"
        assert result.output.strip(), words
    assert Path("runs/demo/report.html").exists() and Path("phone.fqssl").exists()


@pytest.mark.parametrize("path", ELSEWHERE.values())
def test_what_is_run_elsewhere_is_there(path):
    assert (Path(__file__).parent / path).is_file()


def test_the_readme_stays_short():
    """It says what this is and where everything else is written."""
    assert len(PAGES["README.md"].splitlines()) <= 80


def test_the_picture_is_small():
    picture = ROOT / "docs" / "img" / "quickstart.png"
    assert f"({picture.relative_to(ROOT)})" in PAGES["README.md"] and picture.stat().st_size < 150_000
