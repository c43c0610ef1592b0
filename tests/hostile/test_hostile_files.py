"""Something else in the place of every file that is read; see `hostile.cases`."""

import itertools
import json
import re
import warnings

import numpy as np
import pytest
from hostile import acting, cases
from PIL import EpsImagePlugin, Image
from scipy.io import wavfile

from companion.separation_bias import tasks
from nclib import data
from nclib.config import run_id
from nclib.engine import experiments, runs
from nclib.engine.reference import reference_store
from nclib.engine.store import default_store

ROWS = [(line.split()[0], " ".join(line.split()[1:-1]), line.split()[-1]) for line in cases.FILES.strip().splitlines()]


@pytest.fixture
def filled(project):
    """A project with one of every file; the names that the table has for what only turns out here."""
    wanted = experiments.experiment("fig9", "smoke")
    runs.ensure_runs(wanted)
    run, store = run_id(wanted[0]), default_store()
    reference_store().add("smoke", [store.load(run)], {"digits": {"classes": 10}})
    np.savez(project / "arrays.npz", h=np.eye(4).repeat(5, 0), labels=np.arange(4).repeat(5))
    for split in ("train", "test"):
        for place, name in enumerate("ab"):
            (project / f"photos/{split}/{name}").mkdir(parents=True)
            Image.new("L", (4, 4), 90 * place).save(project / f"photos/{split}/{name}/0.png")
    folder = data.resolve_dataset(f"folder:{project / 'photos'}")
    wavfile.write(project / "song.wav", 8000, np.sin(np.arange(400.0)))
    (project / "own.json").write_text(wanted[0].model_dump_json())
    (project / "scheduler.json").write_text(json.dumps({"address": "tls://127.0.0.1:1"}))
    executed = project / "results/smoke/notebooks/neural_collapse/fig9.ipynb"
    executed.parent.mkdir(parents=True)
    executed.write_bytes((project / "notebooks/neural_collapse/fig9.ipynb").read_bytes())
    sound = tasks.resolve_sound(project / "song.wav")
    folders = {"SOUND": tasks._sound_cache(sound).name, "sound": sound}
    return folders | {"RUN": run, "PHOTOS": folder.removeprefix("folder:").replace("@", "-"), "folder": folder}


def test_each_row_has_a_letter_for_each_damage():
    assert {len(letters) for *_, letters in ROWS} == {len(cases.DAMAGES)}


@pytest.mark.parametrize("size", acting.SIZES)
@pytest.mark.parametrize(("file", "asked", "letters"), ROWS, ids=lambda text: text)
def test_files(file, asked, letters, size, filled, project, tmp_path, counted):
    wrong = []
    place = project / re.sub("RUN|PHOTOS|SOUND", lambda found: filled[found[0]], file)
    keep = tmp_path / "keep"
    acting.copy(project, keep)
    tried = acting.chosen(cases.DAMAGES, letters, ROWS.index((file, asked, letters)), size)
    with counted("files", len(tried)):
        for damage, letter in tried:
            acting.put_back(keep, project)
            acting.damage(place, damage)
            before = acting.tree(project)
            with warnings.catch_warnings(), acting.little_memory():
                warnings.simplefilter("ignore")
                became, said = acting.read(asked, filled, place)
            if became != letter:
                wrong.append(f"{file}, {damage}, {asked}: must be {letter}, is {became}: {said[-300:]}")
            wrong += [f"{damage}: {what}" for what in acting.lost(before, acting.tree(project), place, project)]
        assert not wrong, "\n".join(wrong)


def test_formats_that_start_programs_are_not_opened(project, monkeypatch):
    """Pillow reads EPS by starting Ghostscript, whatever the file is called."""
    started = []

    def ghostscript(*arguments, **options):
        started.append(arguments)
        return Image.new("L", (4, 4)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    for split, name in itertools.product(("train", "test"), "ab"):
        (project / f"photos/{split}/{name}").mkdir(parents=True)
        (project / f"photos/{split}/{name}/0.png").write_bytes(EPS)
    with Image.open(project / "photos/train/a/0.png") as image:
        image.load()
    assert len(started) == 1, "or this test could not fail"
    with pytest.raises(data.DataError, match="are not images in BMP"):
        data.resolve_dataset("folder:photos")
    assert len(started) == 1


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
