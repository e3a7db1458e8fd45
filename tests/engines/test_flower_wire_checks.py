"""What a reply and a client's words about itself may contain."""

import math
from types import SimpleNamespace

import pytest

from fedqssl.engines.flower.wire import Capabilities, Reply, Request, WireError, check_reply, pack, plain, unpack

REQUEST, ORDER = Request("run", "nonce", {}), SimpleNamespace(round_number=2, epochs=3)


def checked(**values):
    """A reply after its way over the wire, checked."""
    sent = {"run": "run", "nonce": "nonce", "round_number": 2, "samples": 10, **values}
    reply, _ = unpack(pack(Reply(**sent)), Reply)
    check_reply(reply, REQUEST, ORDER, 10)
    return reply


@pytest.mark.parametrize(
    "values",
    [
        {"seconds": math.inf},
        {"seconds": math.nan},
        {"seconds": -1.0},
        {"seconds": 1e308},
        {"skipped_steps": -1},
        {"skipped_steps": 10**10},
        {"round_number": 10**4300 - 1},
        {"samples": -1},
        {"losses": (1.0,) * 4},
    ],
    ids=lambda values: next(iter(values)),
)
def test_figures_out_of_range_are_refused(values):
    """Sums of them go into metrics.jsonl, which has no infinity, and the report adds them up again."""
    with pytest.raises(WireError, match="figures are out of range"):
        checked(**values)


@pytest.mark.parametrize(
    "values", [{"nonce": "other"}, {"run": "other"}, {"round_number": 1}], ids=lambda v: next(iter(v))
)
def test_a_reply_to_another_message_is_refused(values):
    """Every message has a nonce of its own: an old reply, however valid, answers nothing new."""
    with pytest.raises(WireError, match="a reply to another message"):
        checked(**values)


@pytest.mark.parametrize("samples", [9, 11])
def test_a_client_has_as_many_images_as_it_said(samples):
    """They are its weight in the average."""
    with pytest.raises(WireError, match=f"it claims {samples} images, but had 10 when it joined"):
        checked(samples=samples)


def test_honest_figures_are_taken():
    reply = checked(seconds=86400.5, skipped_steps=3, losses=(4.0, math.nan))
    assert reply.seconds == 86400.5 and math.isnan(reply.losses[1])  # steps of that epoch were skipped


def test_texts_for_a_terminal_are_plain():
    assert plain("a\x1b[2J\nb\u202ec\x9bd") == "a [2J b c d" and plain("ü, 雨") == "ü, 雨"
    assert plain("x" * 300) == "x" * 300 and plain("x" * 301) == "x" * 297 + "..." and len(plain("x" * 99, 10)) == 10


def test_what_a_client_tells_is_plain():
    told, _ = unpack(pack(Capabilities("car\x1b[1m", 4, 10, 2, "0.1.0\r\n", "x" * 9999)), Capabilities)
    assert (told.name, told.version) == ("car [1m", "0.1.0  ") and len(told.architecture) == 300
    assert checked(failed="\x1b]0;title\x07" + "y" * 5000).failed == " ]0;title " + "y" * 287 + "..."
    assert checked().failed is None
