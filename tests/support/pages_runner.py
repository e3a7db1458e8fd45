"""Runs what pages show with the fedqssl of this Python, in the current folder; ``tests/test_installed.py`` starts it.

Takes a JSON file of steps, ``["shell", text]`` or ``["python", text]``, and writes ``steps.done.json`` with the exit code and the
end of the output of each. Commands are run as they are written; only the presets are made small.
"""

import contextlib
import io
import json
import shlex
import sys
import traceback
from dataclasses import replace
from pathlib import Path

SMALL = {"width": 4, "rounds": 1, "batch_size": 16, "workers": 1}
OF_PRESET = {
    "quickstart": {**SMALL, "images": 400, "local_steps": 1},
    "smoke": {**SMALL, "images": 160, "model": "small_cnn"},
    "photos": {**SMALL, "local_steps": 1, "server.steps": 2, "server.threads": 1},
}
QUICK = ["evaluation.probe_images = 60", 'evaluation.controls = "none"']


def shrink_presets() -> None:
    """The presets at smoke size."""
    from fedqssl.config import load

    for name, few in OF_PRESET.items():
        preset = load.PRESETS[name]
        lines = [line for line in preset.text.splitlines() if line.split(" =")[0] not in few]
        lines = [line for line in lines if line.split(" =")[0] not in ("[evaluation]", "probe_images", "controls")]
        small = [f"{key} = {json.dumps(value)}" for key, value in few.items()]
        load.PRESETS[name] = replace(preset, text="\n".join([*small, *QUICK, *lines]))


def step(kind: str, text: str, names: dict[str, object]) -> int:
    """Run one step; its exit code."""
    if kind == "python":
        exec(compile(text, "page", "exec"), names)
        return 0
    from fedqssl.cli.main import main

    try:
        main(shlex.split(text)[1:])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run() -> None:
    """All steps, in order; the first that fails ends it."""
    import fedqssl

    shrink_presets()
    names: dict[str, object] = {}
    done = [["where", 0, fedqssl.__file__]]
    for kind, text in json.loads(Path(sys.argv[1]).read_text()):
        said, code = io.StringIO(), 1
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = step(kind, text, names)
            except Exception:
                traceback.print_exc()
        done.append([text, code, said.getvalue()[-2000:]])
        if code:
            break
    Path("steps.done.json").write_text(json.dumps(done))


if __name__ == "__main__":
    run()
