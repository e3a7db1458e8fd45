"""A stand-in for photos of traffic signs: 43 pictograms in frames, rendered as if photographed badly.

python examples/rendered_signs.py OUT [TRAIN TEST]

Writes OUT/train/NN/*.png and OUT/test/NN/*.png (2,001 and 2,000 pictures), always the same; docs/results.md has figures on them.
"""

import math
import random
import sys
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

FONT = Path(matplotlib.__file__).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
GLYPHS = [*"ABCDEFGKMNRT", "10", *(f"{n}5" for n in range(1, 10)), *"☀☁☃☄♞♛♜♣♦♠⚑⚒⚖⚙⛄✉✎✔➔➤➥"]
FRAMES = ["square"] * 9 + ["red"] * 14 + ["blue"] * 7 + ["white"] * 6 + ["triangle"] * 7
SIDE, PHOTO = 128, 40
LIGHT, DARK, RED, BLUE = (240, 240, 240, 255), (20, 20, 20, 255), (200, 20, 30, 255), (20, 60, 170, 255)


def sign(kind: int) -> Image.Image:
    """One sign on a transparent ground."""
    image = Image.new("RGBA", (SIDE, SIDE), (0, 0, 0, 0))
    draw, frame, ink = ImageDraw.Draw(image), FRAMES[kind], DARK
    low, high = 6, SIDE - 6
    if frame == "red":
        draw.ellipse([low, low, high, high], fill=LIGHT, outline=RED, width=14)
    elif frame == "white":
        draw.ellipse([low, low, high, high], fill=(230, 230, 230, 255), outline=(90, 90, 90, 255), width=5)
        ink = (40, 40, 40, 255)
    elif frame == "triangle":
        corners = [(SIDE / 2, low), (high, high - 6), (low, high - 6)]
        draw.polygon(corners, fill=LIGHT)
        draw.line([*corners, *corners[:2]], fill=RED, width=12, joint="curve")
    else:
        shape = draw.ellipse if frame == "blue" else draw.rectangle
        shape([low, low, high, high], fill=BLUE)
        ink = (250, 250, 250, 255)
    size = {1: 64, 2: 52}[len(GLYPHS[kind])]
    small, shift = (0.7, 14) if frame == "triangle" else (1, 0)
    font = ImageFont.truetype(str(FONT), int(size * small))
    draw.text((SIDE / 2, SIDE / 2 + shift), GLYPHS[kind], font=font, fill=ink, anchor="mm")
    return image


def tilted(image: Image.Image, draws: random.Random) -> Image.Image:
    """Scaled, turned and seen from the side."""
    side = int(SIDE * draws.uniform(0.62, 0.98))
    image = image.resize((side, side), Image.Resampling.BICUBIC)
    image = image.rotate(draws.uniform(-8, 8), Image.Resampling.BICUBIC)
    corners = [(0, 0), (side, 0), (side, side), (0, side)]
    moved = [(x + draws.uniform(-0.08, 0.08) * side, y + draws.uniform(-0.08, 0.08) * side) for x, y in corners]
    rows = []
    for (x, y), (u, v) in zip(moved, corners, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    solved = np.linalg.solve(np.array(rows), np.array([v for corner in corners for v in corner]))
    return image.transform((side, side), Image.Transform.PERSPECTIVE, list(solved), Image.Resampling.BICUBIC)


def photo(image: Image.Image, draws: random.Random) -> Image.Image:
    """A sign on a coloured ground, in poor light, out of focus, with noise."""
    noise = np.random.RandomState(draws.randrange(2**31))
    cells = draws.choice([2, 4, 8, 16])
    ground = Image.fromarray(noise.uniform(0, 255, (cells, cells, 3)).astype("uint8"))
    scene = ground.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGBA")
    image = tilted(image, draws)
    room = SIDE - image.width
    scene.paste(image, (int(room * draws.random()), int(room * draws.random())), image)
    shown = ImageEnhance.Color(scene.convert("RGB")).enhance(draws.uniform(0.3, 1.1))
    shown = ImageEnhance.Contrast(shown).enhance(draws.uniform(0.3, 1.1))
    shown = ImageEnhance.Brightness(shown).enhance(math.exp(draws.uniform(-1.6, 0.25)))
    shown = shown.filter(ImageFilter.GaussianBlur(draws.choice([0, 1, 2, 3, 4])))
    pixels = np.asarray(shown.resize((PHOTO, PHOTO), Image.Resampling.BOX)).astype(float)
    pixels += noise.normal(0, draws.uniform(2, 9), pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype("uint8"))


def main(out: str, train: int = 2001, test: int = 2000) -> None:
    signs = [sign(kind) for kind in range(len(GLYPHS))]
    for split, count in (("train", train), ("test", test)):
        draws = random.Random("two" + split)
        for i in range(count):
            folder = Path(out) / split / f"{i % len(signs):02d}"
            folder.mkdir(parents=True, exist_ok=True)
            photo(signs[i % len(signs)], draws).save(folder / f"{i:05d}.png")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
