"""A tiny run that kills itself with signal 9 at a chosen place: ``killed_run.py FOLDER PLACE WHOM WORKERS``.

PLACE: ``clients:1`` (the first client of round 2 is done; so for ``de-quantize``, ``re-quantize`` and ``evaluation``),
``metrics``, ``saving``, ``renaming`` (the checkpoint of round 2), ``handing out``. WHOM: ``group`` (workers too), or ``parent``.
"""

import os
import signal
import sys
from pathlib import Path

from fedqssl.runs import Progress, finalize, folder, start
from tiny_run import silent, tiny


class Suicidal(Progress):
    def __init__(self, place: str, whom: str) -> None:
        super().__init__(silent)
        self.place, self.whom, self.number = place, whom, 0

    def reached(self, place: str) -> None:
        if place == self.place and self.number == 2:
            os.kill(os.getpid(), signal.SIGKILL) if self.whom == "parent" else os.killpg(os.getpgid(0), signal.SIGKILL)

    def round(self, number: int, rounds: int) -> None:
        self.number = number

    def tick(self, what: str, done: int, total: int) -> None:
        self.reached(f"{what}:{done}")


def tell(progress: Suicidal, owner: object, name: str, place: str, after=False, when=lambda *arguments: True) -> None:
    """Say that a place is reached when ``owner.name`` is called, or has returned."""
    real = getattr(owner, name)

    def called(*arguments, **options):
        if not after and when(*arguments):
            progress.reached(place)
        value = real(*arguments, **options)
        if after:
            progress.reached(place)
        return value

    setattr(owner, name, called)


# No guard by __name__: workers must not run a user's script again.
progress = Suicidal(sys.argv[2], sys.argv[3])
tell(progress, folder.RunFolder, "append_metrics", "metrics", after=True)
tell(progress, folder, "write_atomically", "saving", after=True)
tell(progress, folder.os, "replace", "renaming", when=lambda source, target: Path(source).is_dir())
tell(progress, finalize, "_hand_out", "handing out", after=True)
start(tiny(workers=int(sys.argv[4])), Path(sys.argv[1]), progress=progress)
