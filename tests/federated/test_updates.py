"""FedPAQ's updates on the wire: unbiased, exactly packed, counted; and bad uploads of any algorithm are turned away."""

import dataclasses
import json
import struct

import pytest
import safetensors.torch
import torch

from fedqssl.cli.main import main
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.state import read_state, weight_names
from fedqssl.federated.task import Task
from fedqssl.federated.updates import check_update, decode_update, encode_update
from fedqssl.lowbit import ContainerError, LowBitOptions, to_bytes
from fedqssl.lowbit.container import check_bytes, frame
from fedqssl.quant.packing import packed_size
from fedqssl.runs import round, start
from tiny_run import rounds_of, silent, tiny, tiny_context

TASK = Task("small_cnn", 4, 3, "supervised", 0.5, 8, seed=0, options=LowBitOptions(), classes=10)
WIDER = dataclasses.replace(TASK, width=5)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def update_of(bits: int, task: Task = TASK) -> dict[str, torch.Tensor]:
    noise = draws(7)
    return {n: 0.01 * torch.randn(x.shape, generator=noise) for n, x in read_state(task.converted(bits)).items()}


def encoded(bits: int, task: Task = TASK, change=lambda update: None, seed: int = 0) -> bytes:
    """An update as a client of these bits sends it."""
    update = update_of(bits, task)
    change(update)
    return encode_update(update, bits, draws(seed), weight_names(task.converted(bits)))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_decoded_updates_are_unbiased(bits):
    """Mean of 40,000 decodings of 16 values within 5 standard errors.

    A correct codec fails that with probability 16 x 5.7e-7 per bitwidth, over seeds; the seed here is fixed. The rounding snaps
    what lies within 1e-4 cells of a level, which is added.
    """
    repeats = 40_000
    values = torch.cat([torch.linspace(-0.97, 0.91, 15), torch.tensor([1.0])]).double() * 3e-3
    got = decode_update(encode_update({"w": values.float().repeat(repeats, 1)}, bits, draws(bits)))["w"].double()
    cell = 2 * 3e-3 / (2**bits - 1)
    place = (values.float().double() + 3e-3) / cell
    p = place - place.floor()
    error = (p * (1 - p)).sqrt() * cell / repeats**0.5
    assert ((got.mean(0) - values).abs() <= 5 * error + 1e-4 * cell + 1e-9).all()
    assert ((got - values).abs() < cell * (1 + 1e-3)).all()  # one of the two neighbours, nothing else
    assert bits > 12 or (got[:, 3].unique().numel() == 2)


def test_full_precision_is_lossless_and_zero_stays_zero():
    update = update_of(32)
    back = decode_update(encode_update(update, 32, draws()), 32)
    assert back.keys() == update.keys() and all(torch.equal(back[n], update[n]) for n in update)
    for bits in (1, 4, 16):
        assert not decode_update(encode_update({"w": torch.zeros(5, 3)}, bits, draws()))["w"].any()


@pytest.mark.parametrize("bits", [1, 4, 7, 12])
def test_every_weight_takes_exactly_its_packed_size_and_the_rest_are_floats(bits):
    update, weights = update_of(bits), weight_names(TASK.converted(bits))
    tensors = safetensors.torch.load(check_bytes(encoded(bits)))
    for name, x in update.items():
        if name in weights:
            assert tensors[f"{name}.codes"].numel() == packed_size(x.numel(), bits)
            assert tensors[f"{name}.scale"].shape == (1,)
        else:
            assert torch.equal(tensors[name], x)
    assert len(tensors) == len(update) + len(weights) and 0 < len(weights) < len(update)


def test_same_generator_same_bytes():
    assert encoded(4, seed=1) == encoded(4, seed=1) != encoded(4, seed=2)


def described(change, bits: int = 4) -> bytes:
    """A 4-bit update whose description and tensors were changed, with a right checksum."""
    blob = check_bytes(encoded(bits))
    (size,) = struct.unpack_from("<Q", blob)
    about = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedqssl"])
    tensors = safetensors.torch.load(blob)
    change(about, tensors)
    return frame(safetensors.torch.save(tensors, metadata={"fedqssl": json.dumps(about)}))


def with_scale(value: float):
    def change(about, tensors):
        tensors[next(k for k in tensors if k.endswith(".scale"))] = torch.tensor([value])

    return change


def flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def no_more_finite(about, tensors):
    tensors[min(tensors)].view(-1)[0] = float("nan")


BAD = {
    "flipped bit": (lambda: flipped(encoded(4)), "checksum"),
    "truncated": (lambda: encoded(4)[:-1], "truncated"),
    "empty": (lambda: b"", "mark"),
    "wrong bits": (lambda: encoded(8), "8 bits, from a client of 4"),
    "a model": (lambda: to_bytes(TASK.converted(4)), "a model, not an update"),
    "another architecture": (lambda: encoded(4, WIDER), "architecture"),
    "missing tensor": (lambda: encoded(4, change=lambda update: update.pop(min(update))), "architecture"),
    "batch norm in bits": (lambda: encode_update(update_of(4), 4, draws()), "exactly the model's weights in bits"),
    "weights as floats": (lambda: encode_update(update_of(4), 4, draws(), ()), "exactly the model's weights in bits"),
    "NaN scale": (lambda: described(with_scale(float("nan"))), "not finite"),
    "infinite scale": (lambda: described(with_scale(float("inf"))), "not finite"),
    "infinite bits": (lambda: described(lambda about, t: about.update(bits=float("inf"))), "cannot be read"),
    "huge shape": (lambda: described(lambda about, t: about["shapes"].update(x=[10**30])), "cannot be read"),
    "no shapes": (lambda: described(lambda about, t: about.pop("shapes")), "cannot be read"),
    "shapes in a list": (lambda: described(lambda about, t: about.update(shapes=[1])), "cannot be read"),
    "padding": (lambda: described(lambda about, t: t.update(pad=torch.zeros(1 << 20))), "more than"),
    "short codes": (
        lambda: described(lambda about, t: t.update({k: v[:-1] for k, v in t.items() if k.endswith(".codes")})),
        "bytes of codes",
    ),
}


def test_an_honest_update_passes():
    for bits in (1, 4, 16, 32):
        check_update(encoded(bits), bits, TASK)


@pytest.mark.parametrize("kind", BAD)
def test_bad_updates_are_rejected_with_a_reason(kind):
    make, reason = BAD[kind]
    with pytest.raises(ContainerError, match=reason):
        check_update(make(), 4, TASK)


def test_full_precision_updates_are_checked_as_well():
    with pytest.raises(ContainerError, match="not finite"):
        check_update(described(no_more_finite, 32), 32, TASK)

    def doubles(about, tensors):
        tensors.update({k: v.double() for k, v in tensors.items()})

    with pytest.raises(ContainerError, match="float32"):
        check_update(described(doubles, 32), 32, TASK)


def spoil(monkeypatch, algorithm: str, victims, spoiled):
    """From now on these clients' uploads go through ``spoiled(payload, job, data)``."""
    entry = ALGORITHMS[algorithm]

    def client(payload, job, data):
        sent, metrics = entry.client(payload, job, data)
        return (spoiled(sent, job, data) if data.name in victims else sent), metrics

    monkeypatch.setitem(ALGORITHMS, algorithm, dataclasses.replace(entry, client=client))


def in_other_bits(sent, job, data):
    bits = 5 if data.bits != 5 else 4
    if sent[60:].find(b"fedqssl-update") >= 0:
        return encode_update(decode_update(sent), bits, draws())
    return to_bytes(job.task.converted(bits))


def with_value(value: float):
    def spoiled(sent, job, data):
        if sent[60:].find(b"fedqssl-update") >= 0:
            update = decode_update(sent)
            update[min(update)].view(-1)[0] = value
            return encode_update(update, data.bits, draws(), weight_names(job.task.converted(data.bits)))
        model = job.task.converted(data.bits)
        with torch.no_grad():
            next(p for n, p in model.named_parameters() if p.numel() > 1 and "anchor" not in n).view(-1)[0] = value
        return to_bytes(model)

    return spoiled


@pytest.mark.parametrize("algorithm", ["fed_qssl", "fed_paq"])
@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (lambda sent, job, data: flipped(sent), "checksum"),
        (in_other_bits, "bits"),
        (with_value(float("nan")), "not finite"),
        (lambda sent, job, data: b"", "mark"),
    ],
    ids=["flipped", "wrong bits", "NaN", "empty"],
)
def test_a_bad_upload_is_left_out_and_the_round_goes_on(monkeypatch, algorithm, spoiled, reason):
    """What the others give is what they would give without that client."""
    context = tiny_context(algorithm=algorithm, images=80, **{"server.dequantize_epochs": 0})
    spoil(monkeypatch, algorithm, {"client-01"}, spoiled)
    after, (line,) = rounds_of(context)
    assert set(line["rejected"]) == {"client-01"} and reason in line["rejected"]["client-01"]
    assert set(line["weights"]) == {"client-00", "client-02"} == set(line["client_loss"])
    assert abs(sum(line["weights"].values()) - 1) < 1e-12
    assert set(after.payloads) == {"client-00", "client-01", "client-02"}  # who sent rubbish still gets a model


def test_a_finite_upload_that_makes_the_server_diverge_is_left_out(monkeypatch):
    def huge(sent, job, data):
        model = job.task.converted(32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith("heads"):
                    parameter.fill_(3e38)
        return to_bytes(model)

    context = tiny_context(images=80, bits=[4, 32, 8], **{"lowbit.weights": "value"})  # tanh would tame it
    spoil(monkeypatch, "fed_qssl", {"client-01"}, huge)
    monkeypatch.setattr(round, "check_values", lambda received, found: None)  # which would name it before
    _, (line,) = rounds_of(context)
    assert line["rejected"] == {"client-01": "its loss on the buffer is not finite"}
    assert set(line["weights"]) == set(line["dequantize_loss"]) == {"client-00", "client-02"}


def test_too_few_valid_uploads_end_in_one_line_and_the_run_can_go_on(monkeypatch, tmp_path, capsys):
    spoil(monkeypatch, "fed_simclr", {"client-01"}, lambda sent, job, data: flipped(sent) if job.round_number else sent)
    words = "model=small_cnn width=4 images=80 bits=4,8,32 partition=iid batch_size=16 workers=1 evaluation.knn_every=0"
    words += " algorithm=fed_simclr min_clients=3"
    with pytest.raises(SystemExit) as ended:
        main(["run", "smoke", *words.split(), "--out", str(tmp_path / "a")])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert "round 2 got 2 valid updates, fewer than min_clients = 3 (client-01: checksum" in error
    assert [p.name for p in (tmp_path / "a" / "checkpoints").iterdir()] == ["round-00001"]


def test_rejections_are_counted_in_the_run_and_bytes_are_the_buffers(monkeypatch, tmp_path):
    """metrics.jsonl, log.txt and result.json of a whole FedPAQ run with one liar."""
    sent = {}

    def spoiled(payload, job, data):
        payload = flipped(payload) if data.name == "client-01" else payload
        sent.setdefault(data.name, []).append(len(payload))
        return payload

    spoil(monkeypatch, "fed_paq", {"client-00", "client-01", "client-02"}, spoiled)
    result = start(tiny(algorithm="fed_paq", images=80), tmp_path / "a", say=silent)
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [list(line["rejected"]) for line in lines] == [["client-01"], ["client-01"]]
    assert (tmp_path / "a" / "log.txt").read_text().count("the update of client-01 was not used: checksum") == 2
    written = json.loads((tmp_path / "a" / "result.json").read_text())
    assert {n: c["bytes_up"] for n, c in written["clients"].items()} == {n: sum(sizes) for n, sizes in sent.items()}
    assert written["bytes_up"] == result.bytes_up == sum(map(sum, sent.values()))
