"""What README, guides, tasks, examples and the notebook show, run with the installed package from an empty folder.

A wheel is built and installed into an environment of its own, which takes everything else from this one. Commands and Python are
run in the order of their page; presets are at smoke size. These tests take minutes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

import pytest

from fedqssl.data.scenes import scenes

ROOT = Path(__file__).parents[1]
RUNNER = Path(__file__).parent / "support" / "pages_runner.py"
GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/how-to").glob("*.md"))
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/usage.md",
    "docs/report.md",
    "docs/cost.md",
    "docs/ux-tasks.md",
    *(page for page in GUIDES if page != "docs/how-to/gpu.md"),  # whose commands need a GPU
]
ELSEWHERE = {
    "bench": "studies/bench/test_bench_smoke.py",
    "deploy server": "deploy/test_deployment.py",
    "deploy client": "deploy/test_deployment.py",
    "deploy start": "deploy/test_deployment.py",
    "deploy status": "deploy/test_deployment.py",
    "run quickstart --engine": "engines/test_flower_simulation.py",
    "run cifar10-small --engine": "engines/test_flower_simulation.py",
    "reproduce": "test_readme.py",
    "theory": "test_readme.py",
    "serve": "test_installed.py",
    "watch": "test_installed.py",
}
"""Commands of servers and of minutes, and the tests that run them."""
AS_SMALL = {
    "'seed=0;1;2'": "'seed=0;1'",
    "rounds=50": "rounds=3",
    " --jobs 2": "",
    "cifar10-paper": "cifar10-paper --no-measure",
    "bits=4x5000,8x5000": "bits=4x100,8x100",
    "fraction=0.005 rounds=200": "fraction=0.02 rounds=1",
    "--client client-0421": "--client client-042",
    "rounds=20 local_steps=16": "rounds=2 local_steps=1",
}
"""What a smaller preset does not make small."""
GIVEN = {
    "docs/ux-tasks.md": "import numpy as np\nimages = np.zeros((900, 32, 32, 3), dtype=np.uint8)\nlabels = np.arange(900) % 10\n",
    "docs/how-to/onnx.md": "import numpy as np\npixels = np.zeros((2, 3, 32, 32), dtype=np.uint8)\n",
    "docs/how-to/large-fleets.md": (
        "from fedqssl.data.scenes import scenes\n"
        "made = scenes(2200)\n"
        "images, labels = made.images[:2000].numpy(), made.labels[:2000].numpy()\n"
        "test_images, test_labels = made.images[2000:2100].numpy(), made.labels[2000:2100].numpy()\n"
        "server_images = made.images[2100:].numpy()\n"
    ),
    "docs/how-to/clusters.md": (  # what examples/two_kinds.py makes of CIFAR-10, which is not there
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from fedqssl.data.scenes import scenes\n"
        "made, out = scenes(700), Path('data/night-0')\n"
        "out.mkdir(parents=True)\n"
        "images, labels = made.images.numpy(), made.labels.numpy()\n"
        "clients = np.array([f'{kind}-{i}' for kind in ('photos', 'night') for i in range(5) for _ in range(60)])\n"
        "np.savez(out / 'train.npz', images=images[:600], labels=labels[:600], clients=clients)\n"
        "np.savez(out / 'test.npz', images=images[600:], labels=labels[600:])\n"
    ),
}
"""What a page's reader has."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def python(tmp_path_factory) -> Path:
    """The Python of an environment in which the wheel is installed."""
    home = tmp_path_factory.mktemp("installed")
    source = home / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(home)!r})"
    kernels = {} if shutil.which("g++") else {"FEDQSSL_BUILD_KERNELS": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=source, env=os.environ | kernels, check=True, capture_output=True)
    venv.create(home / "env", with_pip=False)
    found = home / "env" / "bin" / "python"
    words = ["--no-deps", "--no-index", "--quiet", str(next(home.glob("*.whl")))]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(found), "install", *words], check=True, cwd=home)
    packages = next((home / "env" / "lib").glob("python*/site-packages"))
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    shutil.rmtree(source)
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with nothing but a user's photos and files."""
    from PIL import Image

    pixels = scenes(100).images.permute(0, 2, 3, 1).numpy()
    for i, picture in enumerate(pixels):
        image, kind = Image.fromarray(picture), f"{i % 2}/{i}.png"
        wanted = [f"my-photos/{kind}", f"other-photos/{kind}", f"flowers/{kind}", f"photos/phone-{i % 3}/{kind}"]
        for name in wanted:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            image.save(tmp_path / name)
    for name in ("new.jpg", "cat.jpg", "dog.jpg"):
        image.save(tmp_path / name)
    (tmp_path / "devices.toml").write_text("[default]\nmemory = 1e9\n")
    few = 'data = "scenes"\nimages = 160\nclients = 2\nbits = [4, 8]\nmodel = "small_cnn"\nwidth = 4\nrounds = 1\n'
    for name in ("my.toml", "mine.toml"):
        (tmp_path / name).write_text(f'{few}workers = 1\nevaluation.controls = "none"\n')
    shutil.copy(ROOT / "examples" / "own_backbone.py", tmp_path)
    return tmp_path


def perform(python: Path, folder: Path, steps: list[tuple[str, str]]) -> None:
    """Run the steps; an error shows which one failed and what it said."""
    (folder / "steps.json").write_text(json.dumps(steps))
    names = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(RUNNER), "steps.json"], cwd=folder, env=names, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "steps.done.json").read_text())
    text, code, said = found[-1]
    assert code == 0, f"{text}\n{said}"
    assert found[0][2].startswith(str(python.parents[1])) and len(found) == len(steps) + 1


def steps_of(page: str) -> list[tuple[str, str]]:
    """The commands and the Python of a page, in its order."""
    found = [("python", GIVEN[page])] if page in GIVEN else []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M):
        if kind == "python":
            found.append(("python", block))
        for line in block.splitlines() if not kind else ():
            for command in re.split(r"\s#", line)[0].split(" ; "):
                words = command.strip().removeprefix("fedqssl ")
                if words != command.strip() and not any(words.startswith(start) for start in ELSEWHERE):
                    found.append(("shell", f"fedqssl {words}"))
    for long, short in AS_SMALL.items():
        found = [(kind, text.replace(long, short) if kind == "shell" else text) for kind, text in found]
    return found


FIRST = {
    "runs/demo": "fedqssl run quickstart --out runs/demo",
    "runs/a": "fedqssl run my.toml --out runs/a",
    "runs/b": "fedqssl run my.toml seed=1 --out runs/b",
    "phone.fqssl": "fedqssl export runs/demo --client client-00 --out phone.fqssl",
}


def with_what_they_need(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Steps, with the runs and files in front of them that the page takes for granted."""
    words = [text.split() for kind, text in steps if kind == "shell"]
    made = {out for line in words for out, before in zip(line[1:], line, strict=False) if before == "--out"}
    used = {word.strip("'\"") for _, text in steps for word in text.replace('"', " ").replace("(", " ").split()}
    needed = [name for name in FIRST if name in used and name not in made]
    if "phone.fqssl" in needed and "runs/demo" not in needed and "runs/demo" not in made:
        needed.insert(0, "runs/demo")
    return [*(("shell", FIRST[name]) for name in needed), *steps]


@pytest.mark.parametrize("page", PAGES)
def test_a_page(page, python, folder):
    steps = with_what_they_need(steps_of(page))
    assert steps
    if table := re.search(r"^## A device table\n+```toml\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M):
        (folder / "devices.toml").write_text(table[1])
    perform(python, folder, steps)


def test_the_notebook_and_the_examples(python, folder):
    shutil.copytree(ROOT / "examples", folder / "examples")
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    steps = [("python", "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    small = "import sys; sys.path.insert(0, 'examples'); few = dict(rounds=1, batch_size=16, workers=1)"
    calls = [
        "import rendered_signs; rendered_signs.main('signs', 4, 2)",
        "import own_photos; own_photos.main('my-photos', 'out', model='small_cnn', width=4, **few)",
        "import own_backbone; own_backbone.main('runs/own', images=160, clients=2, bits=[4, 8], partition='iid', **few)",
        "import run_to_onnx; assert run_to_onnx.main('runs/own', 'x.onnx') >= 0.9",
        "import own_bits; own_bits.main('bits', 'smoke', 0.5, model='small_cnn', width=4, partition='iid', **few)",
        "import fedqssl; assert len(fedqssl.predict('x.fqssl', 'examples/pictures')) == 4",
    ]
    named = {re.match(r"import (\w+)", call)[1] for call in calls} - {"fedqssl"}
    assert named | {"traffic_signs", "two_kinds"} == {
        path.stem for path in (ROOT / "examples").glob("*.py")
    }  # they need GTSRB and CIFAR-10, and no fedqssl
    made = ("shell", "fedqssl export runs/quickstart-1 --client client-00 --out x.fqssl")
    perform(python, folder, [*steps, made, ("python", small), *(("python", call) for call in calls)])


def asked(address: str, tries: int = 100) -> str:
    """What is at an address; a server says where it is a moment before it listens."""
    for left in reversed(range(tries)):
        try:
            return urllib.request.urlopen(address, timeout=300).read().decode()
        except urllib.error.URLError:
            if not left:
                raise
            time.sleep(0.2)
    raise AssertionError(address)


def answer(python: Path, folder: Path, words: list[str], paths: list[str]) -> list[str]:
    """What a server of ours answers, started by the installed command and stopped afterwards."""
    names = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONUNBUFFERED": "1"}
    command = [str(python.parent / "fedqssl"), *words, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=names, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
            return [asked(address + path) for path in paths]
        finally:
            server.terminate()


def test_the_command_serves_watches_and_demonstrates(python, folder):
    few = "clients=2 bits=4,8 evaluation.knn_every=0"
    perform(python, folder, [("shell", f"fedqssl demo {few}")])
    page, model, health = answer(python, folder, ["serve", "fedqssl-demo/phone.fqssl"], ["/", "/model", "/health"])
    assert "<h1>What is on this image?</h1>" in page and '"client-00"' in model and '"ok"' in health
    assert "Fed-QSSL+ on scenes" in answer(python, folder, ["watch", "fedqssl-demo/run"], ["/"])[0]


@pytest.mark.parametrize("path", sorted(set(ELSEWHERE.values())))
def test_what_is_run_elsewhere_is_there(path):
    assert (Path(__file__).parent / path).is_file()
