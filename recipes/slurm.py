"""Workers from a SLURM queue for any nclib command that takes a scheduler.

    python recipes/slurm.py --interface ib0 --partition gpu --jobs 8 --time 04:00:00 --gpu reproduce --profile paper

Run it on the login node, in the clone. The clone and its results must lie on a disk that the nodes share. What follows
the options is passed to ``nclib``. Scheduler, workers and the command speak TLS; Dask makes the keys for this call, and
the jobs read them from a private folder of the results. Each job is one worker, with one GPU where --gpu says so. A job
that ends at its time limit is replaced, and its run goes on from its checkpoint. Once everything is done the jobs are
cancelled.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dask
from dask_jobqueue import SLURMCluster
from distributed import Security

from nclib.system import paths

DEATHS = 20
"""Ends of jobs that one run may see before it is named as failed: a time limit ends one now and then."""


# Dask's profiler would look at the training a hundred times a second, an eighth of its time.
ENVIRONMENT = (
    *("OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE", "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"),
    "PYTHONSAFEPATH=1",  # jobs start in the clone: no file there is taken for a module of Python
)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interface", required=True, help="network interface that the nodes reach, as in `ip address`")
    parser.add_argument("--partition", help="partition of the queue")
    parser.add_argument("--account")
    parser.add_argument("--jobs", type=int, default=2, help="workers")
    parser.add_argument("--time", default="02:00:00", help="time limit of a job")
    parser.add_argument("--memory", default="16GB", help="of a job")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each job")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="an nclib command, such as: reproduce table1")
    return parser.parse_args(arguments)


def cluster(asked: argparse.Namespace, folder: Path) -> SLURMCluster:
    """The scheduler here and the description of its jobs, none of them submitted yet; keys go into this folder."""
    keys = Security.temporary()
    for name, text in {"cert.pem": keys.tls_client_cert, "key.pem": keys.tls_client_key}.items():
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text)
    dask.config.set({"distributed.scheduler.allowed-failures": DEATHS, "distributed.scheduler.worker-saturation": 1.0})
    return SLURMCluster(
        queue=asked.partition,
        account=asked.account,
        walltime=asked.time,
        memory=asked.memory,
        cores=1,  # one run at a time in each worker
        processes=1,
        worker_extra_args=["--memory-limit", "0"],  # Dask would kill at 95 %; SLURM has a limit of its own
        python=sys.executable,
        interface=asked.interface,
        security=keys,
        shared_temp_directory=str(folder),
        job_extra_directives=["--gpus=1"] if asked.gpu else [],
        job_script_prologue=["export " + " ".join(ENVIRONMENT)],
        scheduler_options={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
    )


def main() -> int:
    asked = options()
    if shutil.which("sbatch") is None:
        return print("slurm.py: no sbatch here; type this on the login node of a SLURM cluster", file=sys.stderr) or 2
    paths.results().mkdir(parents=True, exist_ok=True)
    private = tempfile.TemporaryDirectory(prefix=".key-", dir=paths.results())  # of mode 0700
    with private as folder, cluster(asked, Path(folder)) as workers:
        workers.adapt(minimum_jobs=asked.jobs, maximum_jobs=asked.jobs)
        command = [sys.executable, "-P", "-m", "nclib.cli", *asked.command, "--scheduler", workers.scheduler_address]
        return subprocess.run(command, env=os.environ | client_keys(Path(folder))).returncode


def client_keys(folder: Path) -> dict[str, str]:
    """Dask's own settings for a client: where it finds its key."""
    tls, cert = "DASK_DISTRIBUTED__COMM__TLS__", str(folder / "cert.pem")
    return {f"{tls}CA_FILE": cert, f"{tls}CLIENT__CERT": cert, f"{tls}CLIENT__KEY": str(folder / "key.pem")}


if __name__ == "__main__":
    sys.exit(main())
