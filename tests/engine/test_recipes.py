"""The recipes for clusters: what they would submit, and options that exist."""

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from nclib.cli import app
from nclib.engine import jobs

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
pytest.importorskip("distributed")


@pytest.fixture
def slurm():
    import dask

    spec = importlib.util.spec_from_file_location("slurm", RECIPES / "slurm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with dask.config.set({}):
        yield module


def test_without_sbatch_the_slurm_recipe_says_so_in_a_sentence(slurm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slurm.py", "--interface", "lo", "reproduce"])
    monkeypatch.setenv("PATH", "")
    assert slurm.main() == 2
    assert capsys.readouterr().err == "slurm.py: no sbatch here; type this on the login node of a SLURM cluster\n"


@pytest.mark.filterwarnings("ignore")
def test_the_slurm_recipe_asks_for_one_worker_and_one_gpu_a_job(slurm, tmp_path):
    import dask

    words = "--interface lo --partition gpu --jobs 8 --time 04:00:00 --gpu reproduce table1 --profile paper"
    asked = slurm.options(words.split())
    assert asked.command == ["reproduce", "table1", "--profile", "paper"]
    with slurm.cluster(asked, tmp_path) as workers:
        lines, address = workers.job_script().splitlines(), workers.scheduler_address
        keys = {name.removeprefix("DASK_"): value for name, value in slurm.client_keys(tmp_path).items()}
        settings = {name.lower().replace("__", ".").replace("_", "-"): value for name, value in keys.items()}
        with dask.config.set(settings), jobs.place(None, address, 1) as executor:  # as the command
            assert executor._client.scheduler.address == address and address.startswith("tls://")
    assert {"#SBATCH -p gpu", "#SBATCH -t 04:00:00", "#SBATCH --gpus=1", "#SBATCH -n 1"} <= set(lines)
    start = next(line for line in lines if "dask_worker" in line)
    assert address in start and "--nthreads 1" in start and "--tls-key" in start
    assert lines.index("export " + " ".join(slurm.ENVIRONMENT)) < lines.index(start)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*.pem")} == {0}


def _flags(command):
    return {flag for parameter in command.params for flag in [*parameter.opts, *parameter.secondary_opts]}


def test_the_kubernetes_recipe_names_options_that_exist():
    from distributed.cli import dask_scheduler, dask_worker
    from typer.main import get_command

    known = {
        "nclib-scheduler": _flags(dask_scheduler.main),
        "nclib-worker": _flags(dask_worker.main),
        "nclib-reproduce": _flags(get_command(app.app).commands["reproduce"]),
    }
    documents = yaml.safe_load_all((RECIPES / "kubernetes.yml").read_text())
    found = {each["metadata"]["name"]: each["spec"]["template"] for each in documents if "template" in each["spec"]}
    assert found.keys() == known.keys()
    for name, template in found.items():
        (container,) = template["spec"]["containers"]
        assert {word for word in container["args"] if word.startswith("--")} <= known[name], name
        assert not any("tcp://" in word for word in container["args"]), name
        assert {"name": "key", "mountPath": "/key", "readOnly": True} in container["volumeMounts"], name
