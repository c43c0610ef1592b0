import getpass
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nclib import provenance

PACKAGE = Path(provenance.__file__).parent


def test_record_is_json_and_complete():
    record = provenance.capture(seeds=[0, 1])
    assert json.loads(json.dumps(record)) == record
    assert record["time_utc"].endswith("+00:00")
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]
    assert record["threads"] == torch.get_num_threads() and record["device"] == {"type": "cpu"}
    assert record["seeds"] == [0, 1] and record["cost"] is None


def test_record_tells_nothing_about_who_and_where():
    text = json.dumps(provenance.capture())
    assert platform.node() not in text.replace(platform.machine(), "")
    for secret in (str(Path.home()), os.getcwd(), str(PACKAGE), sys.prefix):
        assert secret not in text
    user = getpass.getuser()
    assert f"/{user}/" not in text


def test_cost_grows_inside_the_block_and_is_final_after_it():
    with provenance.Cost() as busy:
        early = busy.as_dict()
        assert sum(i * i for i in range(300_000)) > 0
    cost = busy.as_dict()
    assert (
        early["cpu_seconds"] < cost["cpu_seconds"] and early["wall_seconds"] < cost["wall_seconds"]
    )
    assert busy.as_dict() == cost


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
def test_commit_and_dirty_flag_follow_the_tree(tmp_path, monkeypatch):
    package = tmp_path / "clone" / "nclib"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "_FOLDER", package)
    assert provenance.git_state() == (None, None)  # outside git
    git(package.parent, "init", "-q")
    assert provenance.git_state() == (None, None)  # in a repository that does not track the code
    git(package.parent, "add", ".")
    assert provenance.git_state() == (None, None)  # tracked, no commit yet
    git(package.parent, "commit", "-q", "-m", "one")
    commit = git(package.parent, "rev-parse", "HEAD").strip()
    assert provenance.git_state() == (commit, False)
    (package / "provenance.py").write_text("x = 2\n")
    assert provenance.git_state() == (commit, True)
    git(package.parent, "checkout", "-q", ".")
    (package / "new.py").touch()
    assert provenance.git_state() == (commit, True)
