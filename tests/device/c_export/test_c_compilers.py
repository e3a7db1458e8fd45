"""The exported folder under compilers, sanitizers and on a Cortex-M in qemu; skipped where a program is missing."""

import platform
import re
import shutil
import subprocess

import pytest

from c_models import WARNINGS, answers, compiled, needed, pixels, written
from device_models import made
from fedqssl.device.c_export import to_c
from fedqssl.device.model import load
from fedqssl.studies.bench.c import BOARD, BOARDS

OK = "ok: the scores are those of fedqssl"


@pytest.fixture
def folder(device_file, tmp_path):
    return written(to_c(load(device_file)).files, tmp_path / "c")


def run(words, folder) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_clean_under_sanitizers(compiler, folder):
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    words = [needed(compiler, compiler), "-fsanitize=address,undefined", "-o", "empty", "empty.c"]
    if subprocess.run(words, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no sanitizers here (for clang 14: apt-get install libclang-rt-14-dev)")
    program = compiled(
        folder, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", compiler=compiler
    )
    assert OK in run([str(program)], folder)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions of a PC")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_pc_with_avx2_uses_it_and_one_without_computes_the_same(compiler, folder):
    """Without any option for this processor, by a choice when the program runs."""
    disassemble = [needed("objdump", "binutils"), "-d", "--no-show-raw-insn"]
    program = str(compiled(folder, "-O2", compiler=compiler))
    assert re.search(r"vpmaddwd .*%ymm", run([*disassemble, program], folder))
    assert OK in run([program], folder)
    if shutil.which("qemu-x86_64"):
        assert OK in run(["qemu-x86_64", "-cpu", "Nehalem", program], folder)
    plain = str(compiled(folder, "-O2", "-DMODEL_PLAIN_C", compiler=compiler))
    assert not re.search(r"vpmaddwd", run([*disassemble, plain], folder))
    assert OK in run([plain], folder)


def test_the_makefile_builds_and_checks(folder):
    needed("make", "make")
    needed("cc", "gcc")
    assert OK in run(["make", "check", "CFLAGS=-O1"], folder)
    run(["make", "clean"], folder)
    assert not (folder / "example").exists()


def test_firmware_in_cpp_can_call_it(folder):
    program = '#include "model.h"\nstatic uint8_t image[MODEL_IMAGE_BYTES];\nint main() { return model_predict(image, 0) < 0; }\n'
    (folder / "main.cpp").write_text(program)
    run([needed("gcc", "gcc"), "-c", "model.c"], folder)
    run([needed("g++", "g++"), "-o", "main", "main.cpp", "model.o"], folder)
    run(["./main"], folder)


def test_the_example_notices_a_wrong_number(folder):
    """What if a compiler computed something else: the check must fail."""
    text = (folder / "model.c").read_text()
    (folder / "model.c").write_text(text.replace("level >>= shift;", "level >>= shift; level ^= 1;"))
    done = subprocess.run([str(compiled(folder))], capture_output=True, text=True)
    assert done.returncode == 1 and "WRONG" in done.stdout


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m7"])
def test_sizes_on_a_microcontroller(cpu, folder, device_file):
    compiler = needed("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    made = to_c(load(device_file))
    run([compiler, f"-mcpu={cpu}", "-mthumb", "-O2", *WARNINGS, "-c", "-o", "model.o", "model.c"], folder)
    text, data, bss = map(int, run(["arm-none-eabi-size", "model.o"], folder).splitlines()[1].split()[:3])
    assert data == 0 and bss == made.ram_bytes  # the card's figure is the linker's
    assert made.table_bytes < text < made.table_bytes + 4096
    names = set(run(["arm-none-eabi-nm", "-u", "model.o"], folder).split()) - {"U", "memset", "memcpy"}
    assert {name[:9] for name in names} <= {
        "__aeabi_f",
        "__aeabi_i",
    }  # float32 of averages; no double, no libm, no malloc


def test_stretched_contrast_takes_no_memory_but_the_image_it_makes(tmp_path):
    from fedqssl.data.scenes import scenes

    compiler = needed("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    pictures = scenes(40, "train")
    images = pictures.images[:, :, :8, :8]
    model = made(4, images, pictures.labels, width=2, contrast="stretch", brief=True)
    c, folder = to_c(model), tmp_path / "c"
    run([compiler, "-mcpu=cortex-m4", "-mthumb", "-O2", *WARNINGS, "-c", "model.c"], written(c.files, folder))
    _, data, bss = map(int, run(["arm-none-eabi-size", "model.o"], folder).splitlines()[1].split()[:3])
    assert data == 0 and bss == c.ram_bytes
    names = set(run(["arm-none-eabi-nm", "-u", "model.o"], folder).split()) - {"U", "memset", "memcpy"}
    assert {name[:9] for name in names} <= {"__aeabi_f", "__aeabi_i", "__aeabi_l"}  # one division of 64 bits


@pytest.mark.slow
@pytest.mark.parametrize("cpu", list(BOARDS))
def test_classes_on_a_board(cpu, folder, device_file):
    """All of it under qemu: the example's own check, and the classes of images that are read through semihosting."""
    from fedqssl.data.scenes import scenes

    compiler = needed("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    qemu = needed("qemu-system-arm", "qemu-system-arm")
    parts = ["--specs=rdimon.specs", "-T", str(BOARD / "mps2.ld"), str(BOARD / "vectors.c")]
    run([compiler, f"-mcpu={cpu}", "-mthumb", "-O2", "-o", "m.elf", *parts, "example_main.c", "model.c"], folder)
    board = [qemu, "-M", BOARDS[cpu], "-nographic", "-kernel", "m.elf", "-semihosting-config"]
    assert OK in run([*board, "enable=on,target=native,arg=example"], folder)
    images = scenes(20, "test").images
    pixels(images).tofile(folder / "few.raw")
    lines = run([*board, "enable=on,target=native,arg=example,arg=few.raw"], folder).splitlines()
    classes, scores = answers(compiled(folder), images)
    assert lines == [" ".join(map(str, (k, *row))) for k, row in zip(classes, scores.tolist(), strict=True)]
    ours = load(device_file).logits(images).argmax(1)
    assert (classes == ours.numpy()).mean() >= 0.9
