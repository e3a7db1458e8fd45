"""``fedqssl deploy flower-app``: write an app that ``flwr run`` starts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from fedqssl.config import load_config
from fedqssl.deploy.fleet import FleetError

PACKAGE = "fedqssl_app"


def _template(file: str, **words: object) -> str:
    return files("fedqssl.deploy").joinpath("templates", file).read_text(encoding="utf-8").format(**words)


def write_app(folder: Path, preset: str, out: Path | None) -> list[Path]:
    """Write the app into a new or empty folder; returns its files.

    Args:
        folder: the app's folder.
        preset: the preset or TOML file that it runs.
        out: where its runs are kept; by default ``runs`` in the folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FleetError(f"{folder} exists and is not empty; choose a new folder for the app")
    config = load_config(preset)
    known = str(Path(preset).absolute()) if Path(preset).is_file() else preset
    runs = (out or folder / "runs").absolute()
    if any(c in '"\\' or not c.isprintable() for c in f"{known}{runs}"):
        raise FleetError("the paths of an app cannot contain quotes, backslashes or control characters")
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "fedqssl-app"
    words = {"name": name, "package": PACKAGE, "publisher": "fedqssl", "preset": known, "out": runs}
    made = {
        "pyproject.toml": _template("flower_pyproject.toml", **words),
        "README.md": _template("flower_readme.md", name=name, clients=config.clients),
        f"{PACKAGE}/__init__.py": '"""fedqssl as a Flower app."""\n',
        f"{PACKAGE}/server_app.py": _template("flower_server_app.py.txt"),
        f"{PACKAGE}/client_app.py": _template("flower_client_app.py.txt"),
    }
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in made]


__all__ = ["write_app"]
