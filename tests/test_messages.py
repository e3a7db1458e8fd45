"""What errors say: at most two lines of a terminal, and no names that only we, or a library, know."""

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
LONGEST = 200
"""Characters: two lines of a hundred; what is filled in counts twelve."""
FOREIGN = re.compile(r"\b_[a-z]\w*\(|\b__\w+__\b|pydantic|torch\.nn\.|torch\.Generator|TensorBase|NoneType|ctypes")


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "x" * 12 for part in node.values)
    return None


def messages() -> list[tuple[str, str]]:
    """Place and text of every error that the package raises with a text of its own."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                texts = [text for argument in node.exc.args if (text := _text(argument)) is not None]
                found += [(f"{path.relative_to(SRC)}:{node.lineno}", text) for text in texts]
    return found


MESSAGES = messages()


def test_there_is_something_to_check():
    assert len(MESSAGES) > 400


@pytest.mark.parametrize(("where", "text"), MESSAGES, ids=[where for where, _ in MESSAGES])
def test_a_message_is_short_and_plain(where, text):
    assert "\n" not in text and len(text) <= LONGEST, f"{len(text)} characters"
    assert not FOREIGN.search(text)
