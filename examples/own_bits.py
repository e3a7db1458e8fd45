"""Your own bits: let device budgets decide, see what stops each device, and run with the result.

python examples/own_bits.py OUT
"""

import sys
from pathlib import Path

import fedqssl

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

    shared = {"clients": 3, **settings}
    found = fedqssl.plan(source, devices=table, target_round_seconds=5.0, **{**shared, "bits": 8})
    for choice in found.choices.values():
        print(f"{choice.name}: {choice.bits} bits, stopped by {choice.binding} {choice.advice}")
    if found.bits is not None:
        print(f"bits={','.join(map(str, found.bits))}")
        print(fedqssl.run(source, out=folder / "run", **{**shared, "bits": found.bits}).headline())


if __name__ == "__main__":
    main(sys.argv[1])
