"""Photos of traffic signs as train/ and test/ for ``data=folder:OUT``, from a copy of the GTSRB training images.

python examples/traffic_signs.py GTSRB OUT [TRAIN TEST]

GTSRB (Stallkamp et al., 2012; not part of fedqssl) has one folder per class with files TRACK_FRAME.ppm, about 30 frames of each
sign as a car drives past it. Half of the tracks of every class train and the other half test, so no sign is on both sides.
Writes OUT/train/NN/*.png and OUT/test/NN/*.png (2,001 and 2,000 photos in proportion to the classes), always the same.
"""

import random
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from PIL import Image


def tracks(folder: Path) -> list[list[Path]]:
    """The frames of every sign of one class."""
    found: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("*.ppm")):
        found[file.name.partition("_")[0]].append(file)
    return [found[name] for name in sorted(found)]


def draw(classes: list[list[Path]], photos: int, draws: random.Random) -> list[list[Path]]:
    """As many photos in all, at least one per class, otherwise in proportion to what each class has."""
    total, spare = sum(map(len, classes)), photos - len(classes)
    counts = [1 + spare * len(files) // total for files in classes]
    for i in draws.sample(range(len(classes)), photos - sum(counts)):
        counts[i] += 1
    return [draws.sample(files, min(count, len(files))) for files, count in zip(classes, counts, strict=True)]


def main(source: Path, out: Path, train: int, test: int) -> None:
    """Write both folders; an existing OUT is an error, and after any other error nothing is left of it."""
    draws = random.Random(0)
    folders = sorted((f for f in source.glob("*") if f.is_dir() and f.name.isdigit()), key=lambda f: int(f.name))
    if not folders or not all(map(tracks, folders)):
        sys.exit(f"{source} has no folders 0 to 42 (or 00000 to 00042) with files like 00000_00000.ppm")
    if out.exists():
        sys.exit(f"{out} exists; name a new folder")
    halves: dict[str, list[list[Path]]] = {"train": [], "test": []}
    for folder in folders:
        signs = tracks(folder)
        draws.shuffle(signs)
        middle = (len(signs) + 1) // 2
        halves["train"].append([file for sign in signs[:middle] for file in sign])
        halves["test"].append([file for sign in signs[middle:] for file in sign])
    for part, photos in (("train", train), ("test", test)):
        for folder, files in zip(folders, draw(halves[part], photos, draws), strict=True):
            to = out / part / f"{int(folder.name):02d}"
            to.mkdir(parents=True)
            for file in files:
                try:
                    Image.open(file).save(to / f"{file.stem}.png")
                except (OSError, ValueError) as error:
                    shutil.rmtree(out)
                    sys.exit(f"{file} cannot be read ({error}); fetch it again, then start over")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5] or ("2001", "2000")))
