"""Progress on a terminal is a live bar below lines that stay; elsewhere it is plain lines and nothing else."""

import io

import pytest
from rich.console import Console

from fedqssl.cli.progress import TerminalProgress
from fedqssl.runs.progress import round_line, seconds


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM"):
        monkeypatch.delenv(name, raising=False)


def show(terminal: bool) -> tuple[str, list[str]]:
    """All that was written, and what stood in the live line after each step."""
    out, live = io.StringIO(), []
    console = Console(file=out, force_terminal=terminal or None, width=100)
    with TerminalProgress(console) as progress:
        for number in (1, 2):
            progress.round(number, 2)
            for done in range(4):
                seen = len(out.getvalue())
                progress.tick("clients", done, 3)
                progress.bars.refresh()
                live.append(out.getvalue()[seen:])
            progress.say(f"round {number}/2  loss [red]3.2[/red]  " + "long " * 30)
    return out.getvalue(), live


def test_on_a_terminal_a_live_bar_appears_and_lines_stay():
    text, live = show(terminal=True)
    assert "\x1b[2K" in text  # the live line is erased and drawn again
    for number in (1, 2):
        for done in range(4):
            drawn = live[4 * (number - 1) + done]
            assert f"round {number}/2 clients" in drawn and f"{done}/3" in drawn and "━" in drawn
    for number in (1, 2):  # said once, in full, as it is, and not part of what is erased
        assert text.count(f"round {number}/2  loss [red]3.2[/red]  " + "long " * 30) == 1
    end = text[text.rindex("long ") :]
    assert "\x1b[2K" in end and "\x1b[?25h" in text  # the bar goes away at the end, and the cursor comes back


def test_without_a_terminal_there_are_plain_lines_only():
    text, live = show(terminal=False)
    assert text == "".join(f"round {n}/2  loss [red]3.2[/red]  " + "long " * 30 + "\n" for n in (1, 2))
    assert live == [""] * 8


def test_the_cursor_comes_back_after_ctrl_c():
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), TerminalProgress(Console(file=out, force_terminal=True, width=100)):
        raise KeyboardInterrupt
    assert "\x1b[?25h" in out.getvalue()


@pytest.mark.parametrize(
    ("left", "said"), [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (5400, "1.5 h"), (36000, "10.0 h")]
)
def test_time_left(left, said):
    assert seconds(left) == said


def test_a_rounds_line():
    line = {"round": 3, "loss": 2.34567, "knn": 0.415, "bytes_up": 2**20, "bytes_down": 2**19}
    assert round_line(line, 8, 30) == "round 3/8  loss 2.346  kNN 41.5%  1.50 MiB  30 s left"
    assert round_line(line | {"loss": None, "knn": None}, 8, 30) == "round 3/8  1.50 MiB  30 s left"
