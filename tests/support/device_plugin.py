"""A finished run of seconds, and a device file of it; imported late, for most tests need neither."""

import pytest

SETTINGS = {
    "model": "small_cnn",
    "width": 4,
    "images": 200,
    "batch_size": 16,
    "workers": 1,
    "rounds": 1,
    "clients": 4,
    "bits": [2, 4, 8, 32],
    "evaluation.probe_images": 50,
    "evaluation.knn_every": 0,
}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    from fedqssl.config import load_config
    from fedqssl.runs import start

    out = tmp_path_factory.mktemp("device") / "run"
    return start(load_config("smoke", SETTINGS), out, say=lambda line: None).folder


@pytest.fixture(scope="session")
def finished(run_folder):
    from fedqssl.maker.finished_run import FinishedRun

    return FinishedRun.open(run_folder)


@pytest.fixture(scope="session")
def device_file(finished, tmp_path_factory):
    """The 4-bit client's device file."""
    from fedqssl.maker.personal import device_bytes

    path = tmp_path_factory.mktemp("file") / "phone.fqssl"
    path.write_bytes(device_bytes(finished, "client-01"))
    return path
