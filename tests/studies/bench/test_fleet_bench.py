"""The benchmark of large fleets: what it counts, and what it refuses."""

import pytest

from fedqssl.federated.job import ClientData
from fedqssl.runs.round import first_checkpoint
from fedqssl.studies.bench import fleet
from fedqssl.studies.bench.throughput.large_fleet import Watch, no_steps
from tiny_run import tiny_context


def test_a_small_fleet_is_measured():
    said = []
    record = fleet.run(clients=(52,), rounds=2, workers=1, say=said.append)
    (row,) = record.results
    assert row["clients"] == 52 and row["start_cpu_seconds"] > row["round_cpu_seconds"] > 0
    assert row["peak_bytes"] > 50 << 20 and len(said) == 1


@pytest.mark.parametrize("clients", [50, 101])
def test_fleets_that_cannot_be_are_refused(clients):
    with pytest.raises(ValueError, match="multiple of 4"):
        fleet.run(clients=(clients,), say=str)
    with pytest.raises(ValueError, match="first round"):
        fleet.run(clients=(100,), rounds=1, say=str)


def test_rows_are_medians_and_the_largest_memory():
    found = [{"start_cpu_seconds": s, "round_cpu_seconds": s / 10, "peak_bytes": 10 * s} for s in (3.0, 1.0, 2.0)]
    want = {"clients": 8, "start_cpu_seconds": 2.0, "round_cpu_seconds": 0.2, "peak_bytes": 30}
    assert fleet._row(8, found) == want


def test_a_client_without_steps_returns_what_it_got():
    context = tiny_context()
    name = min(context.bits)
    payload = first_checkpoint(context).payloads[name]
    data = ClientData(name, context.bits[name], context.client(name).images)
    upload, metrics = no_steps(payload, context.job(0, 0.1), data)
    assert upload == payload and upload is not payload and metrics.samples == len(data.images)


def test_the_first_beginning_and_every_end_are_noted():
    watch = Watch()
    watch.round(1, 2)
    began = watch.began
    assert watch.go_on({})
    watch.round(2, 2)
    assert watch.began == began and len(watch.ends) == 1 and watch.ends[0] >= began
