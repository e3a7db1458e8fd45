"""Your own bits: let device budgets decide, see what stops each device, and run with the result.

python examples/own_bits.py OUT
"""

import sys
from pathlib import Path

import fedqssl
from fedqssl.config import load_config
from fedqssl.cost import Planner, Targets, bits_line, read_devices

DEVICES = """
[default]
uplink = "2 Mbit/s"
[clients.client-00]
memory = "{small} MiB"
"""


def main(out: str, source: str = "quickstart", small: float = 48, **settings: object) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "devices.toml"
    table.write_text(DEVICES.format(small=small))

    config = load_config(source, {"clients": 3, "bits": 8, **settings})
    choices = Planner(config, targets=Targets(round_seconds=5.0)).plan(read_devices(table))
    for choice in choices.values():
        print(f"{choice.name}: {choice.bits} bits, stopped by {choice.binding} {choice.advice}")
    line = bits_line(choices)
    print(line)
    if line is not None:
        bits = [int(b) for b in line.removeprefix("bits=").split(",")]
        print(fedqssl.run(source, out=folder / "run", **{**settings, "bits": bits}).headline())


if __name__ == "__main__":
    main(sys.argv[1])
