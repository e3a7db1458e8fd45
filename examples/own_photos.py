"""Your own photos: pre-train across devices on a folder of images, then hand one device its file.

    python examples/own_photos.py PHOTOS OUT

PHOTOS has a sub-folder per class (or per person, then per class); labels are only used for the closing classifier.
"""

import sys
from pathlib import Path

import fedqssl


def main(photos: str, out: str, **settings: object) -> None:
    folder = Path(out)
    words = {"clients": 3, "bits": [4, 6, 8], "partition": "iid", **settings}
    run = fedqssl.run("quickstart", data=photos, out=folder / "run", **words)
    print(run.headline())

    path = run.clients["client-00"].export(folder / "client-00.fqssl")
    for image in sorted(Path(photos).rglob("*.png"))[:3]:
        [best] = fedqssl.predict(path, image, top=2)
        print(f"{image.name}: {best.name} ({100 * best.probability:.0f}%)")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
