"""Your own photos: pre-train across devices on a folder of images, then hand one device its file.

    python examples/own_photos.py PHOTOS OUT

PHOTOS has a sub-folder per class (or per person, then per class); labels are only used for the closing classifier.
"""

import sys
from pathlib import Path

import fedqssl
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes


def main(photos: str, out: str, **settings: object) -> None:
    folder = Path(out)
    words = {"data": f"folder:{photos}", "clients": 3, "bits": [4, 6, 8], "partition": "iid", **settings}
    result = fedqssl.run("quickstart", out=folder / "run", **words)
    print(result.headline())

    name = next(iter(result.clients))
    path = folder / f"{name}.fqssl"
    path.write_bytes(device_bytes(FinishedRun.open(folder / "run"), name))
    model = fedqssl.load(path)
    for image in sorted(Path(photos).rglob("*.png"))[:3]:
        best = model.predict(image, top=2)[0]
        print(f"{image.name}: {best.name} ({100 * best.probability:.0f}%)")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
