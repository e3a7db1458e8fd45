"""Exported C in tests: compiled, run on images, and compared with its simulation."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def needed(program: str, package: str) -> str:
    """The program, or a skip that says how to get it."""
    if not shutil.which(program):
        pytest.skip(f"no {program} (apt-get install {package})")
    return program


def written(files, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def compiled(folder: Path, *flags: str, compiler: str = "gcc", main: str = "example_main.c") -> Path:
    """The example as a program; a warning is an error."""
    program = folder / f"example-{compiler}"
    words = [needed(compiler, compiler), *(flags or ["-O1"]), *WARNINGS, "-o", str(program), main, "model.c"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def answers(program: Path, images) -> tuple[np.ndarray, np.ndarray]:
    """Classes and scores that the program prints for uint8 images (N, C, H, W)."""
    file = program.parent / "images.raw"
    pixels(images).tofile(file)
    done = subprocess.run([str(program), str(file)], capture_output=True, text=True, check=True)
    rows = np.array([line.split() for line in done.stdout.splitlines()], dtype=np.int64)
    return rows[:, 0], rows[:, 1:]


def pixels(images) -> np.ndarray:
    """Images as C takes them: channels last."""
    return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
