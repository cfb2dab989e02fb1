"""Pictures of text, drawn: what pipelines/images/lines and pages were made by, and as many more as are wanted.

`python -m tests.support.pictures` draws those of pipelines/images again.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

TEXT = (
    "coffee tea bread apples milk total change cash invoice date paid street number order table 12.50 3.99 7.20 "
    "2026-11-21 +49 30 1234 No. Qty thank you open daily from 8:30 till 18:00 platform gate B27 seat 14C exit"
)
PAPERS = ((242, 238, 230), (255, 255, 255), (228, 234, 240), (250, 244, 214), (34, 38, 46))
INKS = ((28, 34, 52), (150, 20, 30), (20, 90, 60), (60, 60, 60))
ROOT = Path(__file__).parent.parent.parent


def draw_lines(folder: Path, count: int, seed: int = 0) -> Path:
    """Lines of text, 320 x 48, for a recognizer."""
    return _draw(folder, count, seed, (320, 48), _line)


def draw_pages(folder: Path, count: int, seed: int = 0) -> Path:
    """Pages with lines of text, 320 x 320, for a detector."""
    return _draw(folder, count, seed, (320, 320), _page)


def _draw(folder: Path, count: int, seed: int, size: tuple[int, int], put: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pick = random.Random(seed * 10_000 + number)
        paper = pick.choice(PAPERS)
        image = Image.new("RGB", size, paper)
        put(ImageDraw.Draw(image), pick, paper)  # type: ignore[operator]
        image.quantize(32).save(folder / f"{number:03d}.png", optimize=True)
    return folder


def _line(draw: ImageDraw.ImageDraw, pick: random.Random, paper: tuple[int, int, int]) -> None:
    draw.text((6, 24), _text(pick, 4), _ink(pick, paper), ImageFont.load_default(pick.randint(22, 32)), anchor="lm")


def _page(draw: ImageDraw.ImageDraw, pick: random.Random, paper: tuple[int, int, int]) -> None:
    top = pick.randint(14, 40)
    while top < 280:
        height = pick.randint(13, 34)
        left = pick.randint(8, 90)
        draw.text((left, top), _text(pick, 3), _ink(pick, paper), ImageFont.load_default(height))
        top += height + pick.randint(10, 40)


def _text(pick: random.Random, most: int) -> str:
    return " ".join(pick.choices(TEXT.split(), k=pick.randint(1, most)))


def _ink(pick: random.Random, paper: tuple[int, int, int]) -> tuple[int, int, int]:
    return pick.choice(INKS) if sum(paper) > 300 else (235, 235, 225)


if __name__ == "__main__":
    draw_lines(ROOT / "pipelines/images/lines", 12)
    draw_pages(ROOT / "pipelines/images/pages", 8)
