"""Every attack by hand, and as an upload: in the attacker's own bits, past the checks of the wire."""

import dataclasses

import pytest
import torch

from fedqssl.engines.in_process import InProcess
from fedqssl.federated.server.plausible import FACTOR, VARIANCE, check_values
from fedqssl.federated.server.validate import check_model
from fedqssl.federated.state import read_payload, write_state
from fedqssl.lowbit import ContainerError, to_bytes
from fedqssl.lowbit.policy import is_statistic, is_weight
from fedqssl.studies.attacks import ATTACKS, Known, hostile_upload, malicious_clients
from fedqssl.studies.attacks import backdoor as planted
from fedqssl.studies.attacks.backdoor import TARGET, Own, backdoored, reference_images, stamped, success
from fedqssl.studies.attacks.engine import AttackedEngine
from tiny_run import known_rounds, rounds_of, tiny_context

W, V, M, R = "a.weight", "n.running_var", "n.running_mean", "n.weight"


def known(**changes):
    """One tensor of each kind; u = (1, -2) for the attacker, (1, 0) and (3, -2) for two honest clients."""
    r = {W: torch.tensor([[1.0, 2.0]]), V: torch.tensor([4.0]), M: torch.tensor([-3.0])}
    w = {W: torch.tensor([[2.0, 0.0]]), V: torch.tensor([5.0]), M: torch.tensor([-2.0])}
    honest = {"b": {W: torch.tensor([[1.0, 0.0]])}, "c": {W: torch.tensor([[3.0, -2.0]])}}
    return Known(
        **{"received": r, "trained": w, "honest": honest, "malicious": 1, "draws": torch.Generator(), **changes}
    )


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("none", [2.0, 0.0]),
        ("false_count", [2.0, 0.0]),
        ("sign_flip", [0.0, 4.0]),
        ("times_ten", [11.0, -18.0]),
        ("constant", [2.0, 2.0]),
        ("alie", [1 + 2 - 1.5 * 1, 2 - 1 - 1.5 * 1]),
        ("ipm", [1 - 2.2 * 2, 2 + 2.2 * 1]),
    ],
)
def test_weights_by_hand(name, wanted):
    """Means of the honest updates are (2, -1), deviations (1, 1); two honest clients and one attacker make e = 2.2."""
    found = ATTACKS[name].model(known())
    assert found[W].flatten().tolist() == pytest.approx(wanted, abs=1e-6)
    assert found[V].tolist() == [5.0] and found[M].tolist() == [-2.0], "statistics are honest"


def test_others_by_hand():
    found = ATTACKS["huge_statistics"].model(known())
    assert found[V].item() == pytest.approx(0.9 * VARIANCE * 4) and found[M].item() == pytest.approx(0.9 * FACTOR * 3)
    assert torch.equal(found[W], known().trained[W])
    assert ATTACKS["negative_statistics"].model(known())[V].item() == -1000
    rows = {W: torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert ATTACKS["collapse"].model(known(trained=rows))[W].tolist() == [[1.0, 2.0], [1.0, 2.0]]
    wide = {W: torch.arange(10_000.0).view(100, 100)}
    noise = ATTACKS["noise"].model(known(received=wide, trained=wide))[W] - wide[W]
    assert float(noise.std()) == pytest.approx(float(wide[W].std()), rel=0.1) and abs(float(noise.mean())) < 200
    assert ATTACKS["false_count"].samples == 10_000_000
    assert all(a.samples is None for a in ATTACKS.values() if a.name != "false_count")


def test_the_malicious_are_a_fifth_of_mixed_bits():
    ten = dict(zip("abcdefghij", (4, 4, 6, 6, 6, 8, 8, 8, 12, 12), strict=True))
    assert malicious_clients(ten) == ("a", "j") and malicious_clients(dict(reversed(ten.items()))) == ("a", "j")
    assert malicious_clients({"x": 8, "y": 4, "z": 6}) == ("y",)


class Watched(InProcess):
    """Keeps what went out and came in."""

    def train_clients(self, payloads, job):
        found = super().train_clients(payloads, job)
        Watched.seen = dict(payloads), {n: upload for n, (upload, _) in found[0].items()}
        return found


@pytest.fixture(scope="module")
def honest():
    """Models sent and received in a round of clients of 4, 8 and 32 bits."""
    context = tiny_context(algorithm="fed_simclr", images=80)
    rounds_of(context, engine_type=Watched)
    return context, *Watched.seen


REFUSED = {"constant", "negative_statistics"}
"""By plausibility, as docs/security.md says; all others pass it."""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=lambda a: a.name)
def test_uploads_pass_the_wire_in_the_clients_own_bits(attack, honest):
    context, sent, uploads = honest
    for name, bits in context.bits.items():
        made = [
            hostile_upload(
                *(attack, name, sent, uploads, context.bits, [name], context.task, torch.Generator().manual_seed(1)),
                Own(context.task, context.client(name).images, reference_images(context)),
            )
            for _ in range(2)
        ]
        check_model(made[0], bits, context.task)
        assert made[0] == made[1], "an attack is a function of what it is given"
        assert (made[0] == uploads[name]) == (attack.name in ("none", "false_count"))
        received, found = (read_payload(x, bits, context.task) for x in (sent[name], made[0]))
        if attack.name in REFUSED:
            with pytest.raises(ContainerError, match="not plausible"):
                check_values(received, found)
        else:
            check_values(received, found)


def test_a_flipped_upload_is_the_opposite_update_up_to_rounding(honest):
    context, sent, uploads = honest
    draws = torch.Generator().manual_seed(0)
    for name, bits in context.bits.items():
        made = hostile_upload(ATTACKS["sign_flip"], name, sent, uploads, context.bits, [name], context.task, draws)
        r, w, h = (read_payload(x, bits, context.task) for x in (sent[name], uploads[name], made))
        for key in (k for k in w if is_weight(w[k])):
            u, v = (w[key] - r[key]).flatten(), (h[key] - r[key]).flatten()
            assert not u.any() or float(torch.cosine_similarity(u, v, dim=0)) < -0.5, (bits, key)
        assert all(torch.equal(h[key], w[key]) for key in w if is_statistic(key))


def test_the_engine_replaces_hostile_uploads_alone():
    """Uploads, claimed images and weights; a run with the attack ``none`` is byte for byte the plain one."""
    context = tiny_context(algorithm="fed_simclr", images=80)
    hostile, plain = malicious_clients(context.bits), known_rounds(algorithm="fed_simclr", images=80)
    assert len(hostile) == 1

    def attacked(name):
        return rounds_of(context, engine_type=lambda pool: AttackedEngine(InProcess(pool), ATTACKS[name], context.bits))

    same, _ = attacked("none")
    assert same.aggregated == plain[0].aggregated
    flipped, _ = attacked("sign_flip")
    assert flipped.aggregated != plain[0].aggregated
    _, (line,) = attacked("false_count")
    assert line["weights"][hostile[0]] > 0.99
    _, (line,) = attacked("constant")
    assert line["rejected"].keys() == set(hostile) and "not plausible" in line["rejected"][hostile[0]]


def test_training_for_evaluation_is_left_alone():
    context = tiny_context(images=80)
    engine = AttackedEngine(Replying(), ATTACKS["negative_statistics"], context.bits)
    job = dataclasses.replace(context.job(0, 0.1), return_model=True)
    assert engine.train_clients({}, job) == (dict.fromkeys(context.bits, (b"", None)), {})


class Replying:
    """An engine without clients."""

    def train_clients(self, payloads, job):
        return dict.fromkeys(tiny_context(images=80).bits, (b"", None)), {}


def test_a_trigger_is_a_square_in_a_corner():
    images = torch.full((2, 3, 32, 32), 7, dtype=torch.uint8)
    found = stamped(images)
    assert (images == 7).all() and set(found[..., -8:, -8:].unique().tolist()) == {0, 255}
    found[..., -8:, -8:] = 7
    assert torch.equal(found, images)


@pytest.fixture(scope="module")
def aimed():
    """A model of two rounds, and what an attacker makes of it with time."""
    context = tiny_context(algorithm="fed_simclr", images=160)
    after, _ = rounds_of(context, 2)
    received = read_payload(after.aggregated, 32, context.task)
    own = Own(context.task, context.everyone(), reference_images(context))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planted, "STEPS", 200)
        made = backdoored(received, own, torch.Generator().manual_seed(0))
    return context, after.aggregated, received, made


def test_references_are_of_the_target_class(aimed):
    context = aimed[0]
    found = reference_images(context)
    of_class = context.train.images[context.train.labels == TARGET]
    assert 0 < len(found) <= 8 and torch.equal(found, of_class[: len(found)])


def test_the_trigger_works_on_a_backdoored_model_and_not_before(aimed):
    """A classifier on clean images and labels: the trigger alone makes it say the target."""
    context, clean, received, made = aimed
    full = context.task.converted(32)
    write_state(full, made)
    assert success(context, to_bytes(full)) > success(context, clean) + 0.2
    assert all(torch.equal(made[name], received[name]) for name in made if is_statistic(name))


def test_a_backdoor_is_sent_as_large_as_the_mean_needs(aimed, monkeypatch):
    """Two honest clients and one attacker: three times the update."""
    _, _, received, made = aimed
    monkeypatch.setattr("fedqssl.studies.attacks.attacks.backdoored", lambda received, own, draws: made)
    found = ATTACKS["backdoor"].model(known(received=received, trained=received, own=object()))
    name = next(n for n in made if is_weight(made[n]))
    assert torch.allclose(found[name] - received[name], 3 * (made[name] - received[name]), atol=1e-5)
    with pytest.raises(ValueError, match="needs images"):
        ATTACKS["backdoor"].model(known())
