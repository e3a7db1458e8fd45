"""The kernels cross-compiled, and run without Python under QEMU: ``make test-arm``. The packages are Debian's
g++-aarch64-linux-gnu, g++-arm-linux-gnueabihf and qemu-user.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import kernel_cases
from fedqssl.quant.kernels import native

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "fedqssl" / "quant" / "kernels"
SCALAR = ("-fno-tree-vectorize", "-fno-tree-slp-vectorize")
GATHERS = {"table_apply", "code_apply", "step_target", "quantile_table", "mean_table", "key_histogram"}
"""Kernels that look one number after the other up, or count it there, for which NEON has no instruction."""
BITS = {"bit_conv2d", "bit_dot"}
"""Kernels that count bits, with the same instruction in both variants."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not native.available(), reason=native.REASON)]


def _need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    kernel_cases.write(folder / "small", kernel_cases.small())
    kernel_cases.write(folder / "large", kernel_cases.large())
    return folder


def _built(work: Path, compiler: str, *flags: str) -> Path:
    """The driver, made by this compiler; once per session."""
    _need(compiler)
    program = work / "-".join([compiler, *(flag.strip("-") for flag in flags)])
    if not program.exists():
        words = ["-O3", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
        words += ["-Wno-unused-parameter", "-static", f"-I{KERNELS}", str(HERE / "driver.cpp"), "-o", str(program)]
        subprocess.run([compiler, *flags, *words], check=True)
    return program


def _run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)


def _right(*command: object) -> None:
    done = _run(*command)
    assert done.returncode == 0 and re.fullmatch(r"\d{3} cases, 0 wrong\n", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("variant", ["neon_dot", "neon", "portable"])
def test_64_bit_arm(variant, work):
    _need("qemu-aarch64")
    _right("qemu-aarch64", _built(work, "aarch64-linux-gnu-g++"), work / "small", variant)


@pytest.mark.parametrize(
    ("cpu", "variants"),
    [("cortex-a53", "neon,portable"), ("cortex-a72", "neon,portable"), ("cortex-a76", "neon_dot,neon,portable")],
)
def test_the_cpu_decides_which_variant_is_best(cpu, variants, work):
    _need("qemu-aarch64")
    assert _run("qemu-aarch64", "-cpu", cpu, _built(work, "aarch64-linux-gnu-g++")).stdout.strip() == variants


def test_a_cpu_without_dot_products_runs_neon(work):
    _need("qemu-aarch64")
    _right("qemu-aarch64", "-cpu", "cortex-a53", _built(work, "aarch64-linux-gnu-g++"), work / "small", "neon")


def test_32_bit_arm(work):
    _need("qemu-arm")
    program = _built(work, "arm-linux-gnueabihf-g++")
    assert _run("qemu-arm", program).stdout.strip() == "portable"
    _right("qemu-arm", program, work / "small", "portable")


def test_x86_without_avx(work):
    program = _built(work, "g++", "-DFQ_ONLY_PORTABLE")
    assert _run(program).stdout.strip() == "portable"
    _right(program, work / "small", "portable")
    shown = _run("objdump", "-d", program, "--no-show-raw-insn").stdout
    ours = re.split(r"\n\n(?=[0-9a-f]+ <)", shown)
    assert not [text[:80] for text in ours if "portable_kernels" in text[:200] and "ymm" in text]


def test_the_driver_notices_a_wrong_bit(work):
    """A test of the test: one bit of the expected outputs is turned over."""
    data = bytearray((work / "large").read_bytes())
    data[-1] ^= 1
    (work / "wrong").write_bytes(data)
    done = _run(_built(work, "g++", "-DFQ_ONLY_PORTABLE"), work / "wrong", "portable")
    assert done.returncode == 1 and "conv2d: output 0 differs" in done.stdout


def _counts(work: Path, program: Path, variant: str, plugin: Path) -> dict[str, int]:
    """Instructions of one call of every kernel: those of three calls minus those of one, halved."""
    found = {}
    for name in dict.fromkeys(case.name for case in kernel_cases.large()):
        ends = []
        for repeats in (1, 3):
            command = "qemu-aarch64", "-plugin", plugin, "-d", "plugin", program, work / "large", variant, repeats, name
            ends.append(int(re.findall(r"instructions (\d+)", _run(*command).stderr)[0]))
        found[name] = (ends[1] - ends[0]) // 2
    return found


def test_neon_takes_at_most_half_of_the_portable_instructions(work, capsys):
    """The bar of 0.5, for all kernels but those that look up or count bits one after the other."""
    _need("qemu-aarch64", "gcc")
    plugin = work / "count.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O2", str(HERE / "count_instructions.c"), "-o", str(plugin)], check=True
    )
    program = _built(work, "aarch64-linux-gnu-g++")
    if "lugin" in _run("qemu-aarch64", "-plugin", plugin, program).stderr:
        pytest.skip("this QEMU was built without plugins")
    plain = _counts(work, _built(work, "aarch64-linux-gnu-g++", *SCALAR), "portable", plugin)
    for variant in ("neon", "neon_dot"):
        vectors = _counts(work, program, variant, plugin)
        ratios = {name: vectors[name] / plain[name] for name in plain}
        with capsys.disabled():
            print(f"\n{variant} / portable:", ", ".join(f"{name} {r:.2f}" for name, r in ratios.items()))
        assert {name: r for name, r in ratios.items() if r > 0.5 and name not in GATHERS | BITS} == {}
        assert all(r < 1.1 for r in ratios.values())
        assert sum(vectors.values()) < 0.4 * sum(plain.values())
        rest = vectors.keys() - GATHERS - {"conv2d"}  # by far the largest: the others must do without it
        assert sum(vectors[name] for name in rest) < 0.5 * sum(plain[name] for name in rest)
