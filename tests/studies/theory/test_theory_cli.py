"""``fedqssl theory``: files, contract of theory.json, refusals in one line."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedqssl.cli.arguments import parse_bit_range
from fedqssl.cli.main import app, main
from fedqssl.config import load_config, to_toml
from fedqssl.federated.context import build_simulation
from fedqssl.lowbit import to_bytes
from fedqssl.studies.theory import Settings, run_checks

RUN = CliRunner()
SMALL = ["--dim", "12", "--clients", "3", "--bits", "3,8", "--rounds", "12", "--seeds", "2"]


def test_one_check_from_the_command_line_and_no_silent_overwriting(tmp_path: Path) -> None:
    out = tmp_path / "t2"
    done = RUN.invoke(app, ["theory", "theorem2", *SMALL, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert set(json.loads((out / "theory.json").read_text())) == {"theorem2", "settings"}
    assert "theorem 2: 8 bits" in done.output and "summary.md" in done.output
    again = RUN.invoke(app, ["theory", "theorem2", *SMALL, "--out", str(out)])
    assert isinstance(again.exception, ValueError) and "exists" in str(again.exception)
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    refused = RUN.invoke(app, ["theory", "theorem2", *SMALL, "--out", str(foreign), "--overwrite"])
    assert isinstance(refused.exception, ValueError) and "no theory.json" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dim", "3", "--clients", "4"], "must not exceed the dimension"),
        (["--bits", "0..4"], "whole numbers from 1 to 16, not 0"),
        (["--bits", "many"], "a range like 2..12"),
        (["--bits", "8..4"], "empty range"),
        (["--rank", "33"], "rank m must lie in 1..32"),
        (["--rank", "0"], "rank m must lie in 1..32"),
        (["--seeds", "1"], "at least 2 seeds are needed"),
        (["--rounds", "1"], "rounds must be at least 10"),
        (["--clients", "1"], "at least 2 clients"),
    ],
)
def test_bad_input_is_one_clear_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["theory", "theorem1", *words, "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_representability_needs_a_run(tmp_path: Path) -> None:
    for words in (["representability"], ["lemma1", str(tmp_path)]):
        refused = RUN.invoke(app, ["theory", *words, "--out", str(tmp_path / "out")])
        assert isinstance(
            refused.exception, ValueError
        ) and "only representability takes a run's folder, and it needs one" in str(refused.exception)
    empty = RUN.invoke(app, ["theory", "representability", str(tmp_path / "no"), "--out", str(tmp_path / "out")])
    assert isinstance(empty.exception, ValueError) and "is not a run" in str(empty.exception)


def _untrained_run(folder: Path) -> Path:
    """The files of a run that the verb reads, with the models that its clients start from."""
    config = load_config("smoke", ["model=small_cnn", "images=200"])
    context = build_simulation(config)
    folder.mkdir()
    (folder / "config.toml").write_text(to_toml(config))
    for name, bits in context.bits.items():
        (folder / "clients" / name).mkdir(parents=True)
        (folder / "clients" / name / "model.fqssl").write_bytes(to_bytes(context.task.converted(bits)))
    return folder


def test_representability_of_a_run(tmp_path: Path) -> None:
    run, out = _untrained_run(tmp_path / "run"), tmp_path / "r"
    done = RUN.invoke(app, ["theory", "representability", str(run), "--directions", "4", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads((out / "theory.json").read_text())["representability"]
    assert len(found["r"]) == 4 and len(found["share"]) == 4 and 0 <= found["r_min"] <= found["r_mean"] <= 1
    assert "smallest r" in done.output
    (run / "clients" / "client-02" / "model.fqssl").unlink()
    again = RUN.invoke(app, ["theory", "representability", str(run), "--out", str(tmp_path / "r2")])
    assert isinstance(again.exception, ValueError) and "the run is not finished" in str(again.exception)


def test_bits_words() -> None:
    assert parse_bit_range("2..5") == (2, 3, 4, 5) and parse_bit_range("8,4,4") == (4, 8)
    assert Settings(bits=parse_bit_range("2..12")).slope_bits == tuple(range(4, 11))
    assert Settings(bits=(2, 3)).slope_bits == (2, 3)


def test_unknown_check_is_named() -> None:
    with pytest.raises(ValueError, match="unknown check 'lemma2'"):
        run_checks(["lemma2"], Settings())


def test_theory_stands_below_the_roles() -> None:
    folder = Path(sys.modules["fedqssl.studies.theory"].__file__ or "").parent
    lines = [line for file in folder.glob("*.py") for line in file.read_text().splitlines()]
    imports = {line.split()[1] for line in lines if line.startswith(("from fedqssl", "import fedqssl"))}
    below = {name for name in imports if not name.startswith("fedqssl.studies.theory")}
    assert {".".join(name.split(".")[:2]) for name in below} == {
        "fedqssl.quant",
        "fedqssl.evaluation",
        "fedqssl.plotting",
    }
