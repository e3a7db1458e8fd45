"""What is installed: one wheel per platform with the kernels inside, and a build that says when it has none."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fedqssl

ROOT = Path(__file__).parents[1]
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler (apt-get install g++)")
NO_COMPILER = {"CC": "false", "CXX": "false"}


@pytest.fixture
def source(tmp_path):
    """A copy of what a wheel is built from, without what builds in the working folder have left."""
    copy = tmp_path / "source"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(
    source: Path, kind: str = "wheel", **environment: str
) -> tuple[subprocess.CompletedProcess[str], Path | None]:
    """Build as pip does, without the network: the process and the wheel, if there is one."""
    out = source.parent / "dist"
    out.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    names = {k: v for k, v in os.environ.items() if not k.startswith("FEDQSSL_") and k not in ("CC", "CXX")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=names | environment, capture_output=True, text=True, timeout=300
    )
    return done, next(out.glob("*.whl"), None)


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@needs_compiler
def test_one_wheel_per_platform_with_everything_inside(source, tmp_path):
    done, wheel = build(source)
    assert wheel is not None, done.stderr
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("fedqssl", fedqssl.__version__, "py3", "none") and platform != "any"
    files = {path.relative_to(source / "src").as_posix() for path in (source / "src").rglob("*") if path.is_file()}
    missing = {file for file in files - contents(wheel) if ".egg-info/" not in file}
    assert not missing
    assert [file for file in contents(wheel) if file.endswith(".so")] == ["fedqssl/quant/kernels/_native.so"]
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    check = "import fedqssl; from fedqssl.quant.kernels import native; print(fedqssl.__file__, native.REASON)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    told = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=True)
    place, reason = told.stdout.split(maxsplit=1)
    assert place.startswith(str(tmp_path / "installed"))
    assert "not built" not in reason and "another version" not in reason and "does not load" not in reason


def test_a_wheel_without_kernels_is_pure_and_made_on_request_only(source):
    done, wheel = build(source, FEDQSSL_BUILD_KERNELS="0", **NO_COMPILER)
    assert wheel is not None, done.stderr
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [file for file in contents(wheel) if file.endswith(".so")]


def test_a_wheel_whose_kernels_do_not_compile_is_an_error(source):
    done, wheel = build(source, **NO_COMPILER)
    assert done.returncode and wheel is None
    assert "did not compile" in done.stderr and "FEDQSSL_BUILD_KERNELS=0" in done.stderr


def test_an_editable_install_falls_back_with_a_warning(source):
    done, wheel = build(source, "editable", **NO_COMPILER)
    assert done.returncode == 0 and wheel is not None, done.stderr
    assert "warning: fedqssl: CPU kernels not built" in done.stdout
    assert not list(source.rglob("*.so"))


def test_the_old_switch_names_the_new_one(source):
    done, _ = build(source, FEDQSSL_NO_KERNELS="1")
    assert done.returncode and "FEDQSSL_BUILD_KERNELS=0" in done.stderr
