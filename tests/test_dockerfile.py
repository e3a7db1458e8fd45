"""The Dockerfile of both roles, by its text: no builder is at hand here, so that it was never built."""

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docker" / "Dockerfile"
KNOWN = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Words and arguments, with continued lines joined and comments left out."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines()]


def test_every_line_is_an_instruction_and_every_command_is_shell():
    for word, rest in instructions():
        assert word in KNOWN, word
        if word == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], capture_output=True).returncode == 0, rest
            assert "&&" not in rest or "apt-get update" not in rest or "rm -rf /var/lib/apt/lists/*" in rest


def test_what_is_copied_is_there_and_no_key_can_be():
    ignored = FILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    stages = {rest.split(" AS ")[1] for word, rest in instructions() if word == "FROM" and " AS " in rest}
    for word, rest in instructions():
        if word != "COPY":
            continue
        parts = rest.split()
        if parts[0].startswith("--from="):
            assert parts[0].removeprefix("--from=") in stages
            continue
        for source in parts[:-1]:
            assert (ROOT / source).exists() and source in let_in, source
    readme = re.search(r'readme = "(.*)"', (ROOT / "pyproject.toml").read_text())[1]
    assert {readme, "LICENSE", "setup.py", "pyproject.toml", "src"} == let_in


def test_it_runs_our_command_as_a_user_of_its_own():
    last = [word for word, _ in instructions()]
    final = instructions()[len(last) - 1 - last[::-1].index("FROM") :]
    found = dict(final)
    assert found["USER"] == "1000" and final.index(("USER", "1000")) > [w for w, _ in final].index("RUN")
    assert json.loads(found["ENTRYPOINT"]) == ["fedqssl", "deploy"] and json.loads(found["CMD"]) == ["--help"]
    assert "libgomp1" in "".join(rest for _, rest in final) and "--uid 1000" in found["RUN"]
    port = re.search(r"^PORT = (\d+)$", (ROOT / "src/fedqssl/deploy/scaffold.py").read_text(), re.M)[1]
    assert found["EXPOSE"] == port and json.loads(found["VOLUME"]) == ["/fleet"]
