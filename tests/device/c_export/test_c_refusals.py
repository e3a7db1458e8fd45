"""What cannot become C is refused by name before anything is written, and nothing is overwritten silently."""

import pytest

from device_models import made
from fedqssl.api import functions
from fedqssl.cli.main import main
from fedqssl.device.c_export import ArenaError, CExportError, to_c
from fedqssl.device.c_export.folder import FILES
from fedqssl.device.model import load
from fedqssl.lowbit import LowBitOptions


@pytest.fixture(scope="module")
def pictures():
    from fedqssl.data.scenes import scenes

    return scenes(100, "train")


def command(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("bits", "options", "message"),
    [
        (32, {}, r"takes models of 1 to 8 bits, and this one has 32; use --format onnx"),
        (9, {}, r"takes models of 1 to 8 bits, and this one has 9"),
        (4, {"weights": "value"}, r"the weights of encoder.layers.0 are not integers \(lowbit.weights = 'value'\)"),
        (4, {"activation_quantizer": "tanh"}, r"does not know lowbit.activation_quantizer = 'tanh'"),
        (4, {"skip": ("encoder.layers.3",)}, r"encoder.layers.3 \(Conv2d\) stays in floats \(lowbit.skip\)"),
    ],
)
def test_options_without_a_counterpart(bits, options, message, pictures):
    images = pictures.images[:, :, :8, :8]
    model = made(bits, images, pictures.labels, width=2, options=LowBitOptions(**options), brief=True)
    with pytest.raises(CExportError, match=message):
        to_c(model)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("Grouped", r"knows no groups and no dilation \(encoder.deep\)"),
        ("Shuffled", r"has no counterpart of encoder.odd \(PixelShuffle\); use --format onnx"),
    ],
)
def test_layers_without_a_counterpart(network, message, pictures):
    images = pictures.images[:, :, :8, :8]
    model = made(4, images, pictures.labels, f"own_networks:{network}", trust=True, brief=True)
    with pytest.raises(CExportError, match=message):
        to_c(model)


def test_too_little_memory_names_what_is_needed(device_file, tmp_path, capsys):
    with pytest.raises(ArenaError, match=r"needs [\d,]+ bytes of RAM, but --max-ram allows 4,000"):
        to_c(load(device_file), max_ram=4000)
    out = tmp_path / "c"
    assert command("export", device_file, "--format", "c", "--out", out, "--max-ram", "4 kB") == 2
    assert "--max-ram allows 4,000" in capsys.readouterr().err
    assert not out.exists()
    assert command("export", device_file, "--format", "c", "--out", out, "--max-ram", "16 KiB") == 0
    sizes = capsys.readouterr().out
    made = to_c(load(device_file), 16 * 1024)
    assert f"{made.ram_bytes:,} bytes of RAM" in sizes and made.ram_bytes <= 16 * 1024
    assert f"| static memory (RAM), all together | {made.ram_bytes:,} bytes |" in (out / "README.md").read_text()


def test_a_client_of_a_run_and_nothing_overwritten(run_folder, tmp_path, capsys):
    out = tmp_path / "firmware"
    words = "export", run_folder, "--client", "client-01", "--format", "c", "--out", out
    assert command(*words) == 0
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    assert b"# small_cnn, 4 bits" in first["README.md"]  # the card, with what C adds to it
    (out / "model.h").write_text("mine")
    (out / "notes.txt").write_text("mine, too")
    assert command(*words) == 2 and "exists; choose another --out" in capsys.readouterr().err
    assert (out / "model.h").read_text() == "mine"
    assert command(*words, "--overwrite") == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == first | {"notes.txt": b"mine, too"}


def test_a_client_of_32_bits_leaves_no_folder(run_folder, tmp_path, capsys):
    out = tmp_path / "firmware"
    with pytest.raises(CExportError, match="this one has 32"):
        functions.export(run_folder, "client-03", out, format="c")
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "fedqssl"], "is a device file already"),
        (["--format", "c", "--client", "client-00"], "leave out --client"),
        (["--format", "onnx", "--max-ram", "64kB"], "--max-ram is a number of bytes, at least 1, for --format c"),
        (["--format", "c", "--max-ram", "lots"], "--max-ram: memory takes"),
        (["--format", "c", "--out", "{file}"], "is a file, but --format c writes a folder"),
    ],
)
def test_words_that_do_not_fit(words, message, device_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [word.replace("{file}", str(device_file)) for word in words]
    assert command("export", device_file, *given) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_run_needs_a_client(run_folder, capsys):
    assert command("export", run_folder, "--format", "c") == 2
    assert "choose a client of the run with --client NAME" in capsys.readouterr().err
