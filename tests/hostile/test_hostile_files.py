"""Formats that start programs."""

import itertools

import pytest
from PIL import EpsImagePlugin, Image

from nclib import data


def test_formats_that_start_programs_are_not_opened(isolated, monkeypatch):
    """Pillow reads EPS by starting Ghostscript, whatever the file is called."""
    started = []

    def ghostscript(*arguments, **options):
        started.append(arguments)
        return Image.new("L", (4, 4)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    monkeypatch.chdir(isolated)
    for split, name in itertools.product(("train", "test"), "ab"):
        (isolated / f"photos/{split}/{name}").mkdir(parents=True)
        (isolated / f"photos/{split}/{name}/0.png").write_bytes(EPS)
    with Image.open(isolated / "photos/train/a/0.png") as image:
        image.load()
    assert len(started) == 1, "or this test could not fail"
    with pytest.raises(data.DataError, match="not images in BMP"):
        data.resolve_dataset("folder:photos")
    assert len(started) == 1


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
