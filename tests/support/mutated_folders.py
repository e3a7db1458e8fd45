"""Hostile copies of run folders: one file of a run changed at random, in ways that damage, other programs and attackers do."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forging import HEAD, seal

DEEP = 100_000
"""Brackets within brackets: more than any reader of JSON nests."""
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, -(2**63), 10**400, 0.5, -0.0, 1e300, -1e308),
    *("", "x", "0.5", "\x1b[31mred\x1b[0m", "[/red]", "../../../x", "a/b", "%s{0}", "\ud800", "x" * 10_000),
    *([], [[]], [None], [1, "a"], {}, {"": 0}, {"a": {"b": []}}),
)
"""Values that a reader does not expect."""
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP)
"""The same, where only the text can say it."""
MARK = "\u2063here\u2063"


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Containers with the keys of everything inside, at any depth; long lists of numbers count once."""
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:3]
    else:
        return found
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def _changed_json(text: str, draw: random.Random) -> str:
    """JSON with one value, key or entry changed."""
    value = json.loads(text)
    places = _places(value, [])
    if not places or draw.random() < 0.05:
        return draw.choice(RAW) if draw.random() < 0.5 else json.dumps(draw.choice(STRANGE))
    holder, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.25 and isinstance(holder, dict):
        holder[str(draw.choice(["new", "\x1b]0;title\x07", "../../x", "", "x" * 5000]))] = holder.pop(key)
    elif kind < 0.4:
        holder[key] = MARK
        return json.dumps(value).replace(json.dumps(MARK), draw.choice(RAW))
    else:
        holder[key] = draw.choice(STRANGE)
    return json.dumps(value)


def _changed_toml(text: str, draw: random.Random) -> str:
    """TOML with one line changed."""
    lines = text.splitlines()
    at = draw.choice([i for i, line in enumerate(lines) if "=" in line])
    key = lines[at].split("=")[0]
    hostile = ("", "nan", "-inf", "1e400", "[]", "[[1]]", "{}", '"\\u001b[31m"', '"evil:Net"', "9" * 500, '"[/red]"')
    deep = ("[" * 5000 + "]" * 5000, '"' + "x" * 10_000 + '"', "-1", "0", "true", "2026-01-01", '"../../x"', "1e9")
    lines[at] = f"{key}= {draw.choice(hostile + deep)}"
    return "\n".join(lines)


def _changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bytes cut off, flipped, doubled or replaced by noise."""
    kind = draw.randrange(5)
    if kind == 0 or not data:
        return data[: draw.randrange(len(data) + 1)]
    if kind == 1:
        return data + data
    if kind == 2:
        return draw.randbytes(draw.randrange(200))
    changed = bytearray(data)
    for _ in range(draw.choice((1, 3, 30))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _changed_container(data: bytes, draw: random.Random) -> bytes:
    """A model whose description was changed, with a valid checksum; or just other bytes."""
    if draw.random() < 0.5:
        return _changed_bytes(data, draw)
    blob = data[HEAD:]
    size = struct.unpack_from("<Q", blob)[0]
    about = _changed_json(blob[8 : 8 + size].decode(), draw).encode("utf-8", "surrogatepass")
    told = draw.choice((len(about), len(about), len(about), 0, 1 << 62))
    return seal(struct.pack("<Q", told) + about + blob[8 + size :])


def _changed(path: Path, draw: random.Random) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".fqssl":
        return _changed_container(data, draw)
    if draw.random() < 0.25:
        return _changed_bytes(data, draw)
    text = data.decode()
    change: Callable[[str, random.Random], str] = _changed_toml if path.suffix == ".toml" else _changed_json
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        lines[at] = _changed_json(lines[at], draw)
        return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    return change(text, draw).encode("utf-8", "surrogatepass")


def mutated(source: Path, target: Path, seed: int, kinds: tuple[str, ...]) -> Path:
    """Copy a run's folder to ``target`` with one file of these endings changed; returns that file."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    draw = random.Random(seed)
    files = sorted(p for p in target.rglob("*") if p.is_file() and p.suffix in kinds)
    text = [path for path in files if path.suffix != ".fqssl"]
    path = draw.choice(files if seed % 4 == 0 else text)
    path.write_bytes(_changed(path, draw))
    return path
