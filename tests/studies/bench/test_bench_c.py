"""``fedqssl bench c``: the C on this processor, and on Cortex-M where the programs for it are there."""

import json
import shutil

from typer.testing import CliRunner

from c_models import needed
from fedqssl.cli.main import app
from fedqssl.device.c_export import to_c
from fedqssl.device.model import load


def test_the_c_is_measured(device_file, tmp_path):
    needed("gcc", "gcc")
    path = tmp_path / "c.json"
    words = ["bench", "c", str(device_file), "--repeats", "1", "--calls", "5", "--json", str(path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    record = json.loads(path.read_text())
    rows = {row["variant"]: row for row in record["results"]}
    made = to_c(load(device_file))
    assert rows["C"]["bits"] == 4 and rows["C"]["us"] > 0 and rows["C"]["constants"] == made.table_bytes
    assert rows["C, gcc -O2"]["us"] > 0
    reasons = {skipped["variant"]: skipped["reason"] for skipped in record["skipped"]}
    if shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm"):
        m4 = rows["C, cortex-m4"]
        assert m4["ram"] == made.ram_bytes and made.table_bytes < m4["flash"] < made.table_bytes + 4096
        assert 100_000 < m4["instructions"] < rows["C, cortex-m3"]["instructions"]  # which has no SMLAD
    else:
        assert "apt-get install" in reasons["cortex-m4"]
