"""``make lock``: a lock file without torch and what only its GPU builds need."""

import re
import sys
from pathlib import Path

HEAD = """# Versions and hashes of everything that CI installs besides torch (constraints.txt), for Python 3.11 on Linux.
# Made by: make lock
"""
LEFT_OUT = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")


def without_torch(text: str) -> str:
    """The entries (a line that is not indented, and its hashes) of all other packages."""
    entries = re.split(r"\n(?=[a-z])", text.strip())
    return HEAD + "\n".join(entry for entry in entries if not LEFT_OUT.match(entry)) + "\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(without_torch(source.read_text()))
