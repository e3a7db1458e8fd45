"""A run that is resumed with other kernels, threads or versions says so: its bytes would not be the same."""

import json

import pytest

from commands import cli
from fake_runs import fake_run
from fedqssl.quant.kernels import intconv
from fedqssl.runs import RunError
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.lifecycle import check_surroundings
from fedqssl.runs.progress import Progress
from fedqssl.runs.surroundings import changes, surroundings
from tiny_run import tiny


@pytest.fixture
def run(tmp_path):
    folder = fake_run(tmp_path / "run", tiny()).folder
    (folder / "result.json").unlink()
    (folder / "environment.json").write_text(json.dumps(surroundings(tiny())))
    return folder


def other(run, **values):
    noted = json.loads((run / "environment.json").read_text())
    noted["kernels"] |= {key: values.pop(key) for key in list(values) if key in noted["kernels"]}
    (run / "environment.json").write_text(json.dumps({**noted, **values}))


def said(run, exact=False) -> list[str]:
    lines: list[str] = []
    check_surroundings(tiny(), RunFolder(run), Progress(lines.append), exact)
    return lines


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backend": "other"}, "kernels other, now "),
        ({"threads": 7}, "threads 7, now 1"),
        ({"instructions": "AVX1024"}, "torch's instruction set AVX1024, now "),
        ({"torch": "1.0"}, "torch 1.0, now "),
        ({"machine": "\x1b[2J" + 200 * "m"}, "machine ?[2J" + 76 * "m" + ", now "),
        ({"integer_convolution_detail": "none"}, "integer convolution none, now "),
        ({"integer_convolution_8_bits": "none"}, "convolution at 8 bits none, now "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_has_changed_is_named(run, values, words):
    assert said(run) == said(run, exact=True) == []
    other(run, **values)
    (line,) = said(run)
    assert line.startswith("warning: ") and "will not be byte for byte" in line and words in line
    assert line in (run / "log.txt").read_text()
    with pytest.raises(RunError, match="will not be byte for byte"):
        said(run, exact=True)


def test_older_records_and_what_does_not_matter(run):
    other(run, python="2.7", choice="torch")
    assert said(run) == []
    assert changes({}, surroundings(tiny())) == changes(None, {}) == changes({"kernels": 3}, {}) == []


@pytest.mark.skipif(not intconv.available(), reason="convolutions of 8 bits are in floats here, as they were")
def test_records_from_before_integers_at_8_bits(run):
    noted = json.loads((run / "environment.json").read_text())
    del noted["kernels"]["integer_convolution_8_bits"]
    (run / "environment.json").write_text(json.dumps(noted))
    (line,) = said(run)
    assert "convolution at 8 bits in floats, now in integers" in line


def test_on_the_command_line(run, capsys):
    other(run, threads=7)
    assert "threads 7, now 1" in cli(capsys, "run", "--resume", run, "--exact", code=2)
    assert "--exact belongs to --resume" in cli(capsys, "run", "smoke", "--exact", code=2)
