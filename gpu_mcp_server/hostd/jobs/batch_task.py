"""One job as a batch job of its own: each task of the batch script becomes this, and runs the job to its end.

The folder lies where the login node sees it too. It holds `spec.json`, `blobs/SHA256`, and for each task a state
folder `ARRAY.RANK` in which the job's record, output and files stay when the allocation is gone.
"""

import json
import os
import signal
import sys
from typing import Dict, Mapping, Tuple

from ..protocol import JobSpec, job_spec_from_json
from .host_resources import Host
from .job_folder import JobFolder
from .spec_validation import validate_spec
from .supervisor_fork import fork_supervisor

NOT_OK, CLAIMED = 1, 6
FROM_MODULES = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What `module load` changes and a job may see."""


def task_folder(environ: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Return the name of this task's folder, and the variables that tell a rank who it is.

    Source: srun(1), mpirun(1) of Open MPI, the PMI-2 interface, qsub(1B); the variables for the job are torchrun's.
    """

    def first(*names: str, default: str) -> str:
        return next((environ[n] for n in names if environ.get(n, "").isdigit()), default)

    array = first("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", default="0")
    rank = first("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", default="0")
    size = first("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", default="1")
    local = first("OMPI_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK", "SLURM_LOCALID", default="0")
    env = {"ARRAY_TASK": array, "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local}
    env.update({name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ})
    return "%s.%s" % (array, rank), env


def run_task(folder: str) -> int:
    """Run the job of this folder; returns 0 when it went well."""
    name, env = task_folder(os.environ)
    with open(os.path.join(folder, "spec.json"), "rb") as text:
        spec = validate_spec(job_spec_from_json(json.loads(text.read().decode("ascii"))))
    env.update({key: os.environ[key] for key in FROM_MODULES if key in os.environ})
    own = "%s-%s" % (spec.id, name.replace(".", "-"))  # tasks that share a node are jobs of their own there
    spec = spec._replace(id=own, processes=tuple(p._replace(env={**env, **p.env}) for p in spec.processes))
    host = Host(os.path.join(folder, name))
    for sha256 in spec.contents():
        with open(os.path.join(folder, "blobs", sha256), "rb") as source:
            host.blobs.put(source.read(), sha256)
    claimed = host.folders.claim(spec)
    if claimed is None:
        sys.stderr.write("this job has run here before\n")
        return CLAIMED
    return _watched(host, claimed, spec)


def _watched(host: Host, claimed: JobFolder, spec: JobSpec) -> int:
    """Run the claimed job; the scheduler's SIGTERM is passed on, so that the record has the reason."""

    def passed_on(number: int, frame: object) -> None:
        del number, frame
        claimed.signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, passed_on)
    pid, end = fork_supervisor(host, claimed, spec, host.gpus.all_gpus() if spec.gpus.count else [])
    os.waitpid(pid, 0)
    end.close()
    return 0 if claimed.record().status == "ok" else NOT_OK
