"""Starts the ranks of a program on one host, each rank's output in files of its own, and says how each ended.

Laid into the job as a file and run twice: `rank_launcher.py start PLAN` is the launcher, `rank_launcher.py rank FOLDER
COMMAND` is what it starts for each rank. Launcher `mpirun` is Open MPI's; launcher `torchrun` sets what torchrun sets
and starts the processes itself, without restarts. Where hosts have a group of ranks each, `multi_host_ranks.py` starts
this one.

Source: environment variables of torchrun, PyTorch documentation, "torchrun (Elastic Launch)"; of Open MPI, mpirun(1).
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List

GRACE_S = 3.0
"""For other ranks to end by themselves when one has failed."""
MPI = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # a sandbox forbids process_vm_readv
    "OMPI_MCA_plm": "isolated",  # one host: no rsh, no ssh
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PMIX_MCA_gds": "hash",
    "OMPI_MCA_pml": "^ucx",  # it wants /sys/class/net, which a sandbox has not
    "OMPI_MCA_osc": "^ucx",
    "HWLOC_HIDE_ERRORS": "2",
}


def free_port() -> int:
    """Return a TCP port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write(path: str, document: Dict[str, Any]) -> None:
    """Replace a file at once."""
    with open(path + ".new", "w", encoding="utf-8") as out:
        json.dump(document, out)
    os.replace(path + ".new", path)


def rank(folder: str, command: List[str]) -> int:
    """Run the program as one rank; rank 0 is heard on our own stdout as well."""
    own = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
    names = {
        "RANK": own,
        "LOCAL_RANK": os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", own)),
        "WORLD_SIZE": os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")),
    }
    base = os.path.join(folder, own)
    write(base + ".json", {"rank": int(own), "state": "running"})
    began = time.monotonic()
    with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
        try:
            pipe = subprocess.PIPE if own == "0" else out
            process = subprocess.Popen(command, stdout=pipe, stderr=err, env=dict(os.environ, **names))
        except OSError as error:
            err.write(("%s: %s\n" % (command[0], error.strerror)).encode())
            write(base + ".json", {"rank": int(own), "state": "ended", "code": 127, "seconds": 0.0})
            return 127
        while process.stdout is not None:
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            out.write(chunk)
            out.flush()
            os.write(1, chunk)
        code = process.wait()
    write(base + ".json", {"rank": int(own), "state": "ended", "code": code, "seconds": time.monotonic() - began})
    return code if code >= 0 else 128 - code


def launch_ranks(plan: Dict[str, Any], environment: Dict[str, str], own: List[str]) -> List["subprocess.Popen[bytes]"]:
    """Start the launcher, or the ranks themselves."""
    command = [*own, "rank", plan["folder"], *plan["argv"]]
    if plan["launcher"] == "mpirun":
        places = ["--host", plan["places"], "--map-by", "slot"] if "places" in plan else []
        argv = [plan["mpirun"], "-n", str(plan["count"]), *places, *command]
        more = {name: value for name, value in MPI.items() if name not in environment}
        return [subprocess.Popen(argv, env=dict(environment, **more), start_new_session=True)]
    found: List[subprocess.Popen[bytes]] = []
    first, world = plan.get("first", 0), str(plan.get("world", plan["count"]))
    for n in range(plan["count"]):
        ranked = {
            "RANK": str(first + n),
            "LOCAL_RANK": str(n),
            "GROUP_RANK": str(plan.get("group", 0)),
            "ROLE_RANK": str(first + n),
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": str(plan["count"]),
            "ROLE_WORLD_SIZE": world,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        ranked.setdefault("OMP_NUM_THREADS", environment.get("OMP_NUM_THREADS", "1"))
        found.append(subprocess.Popen(command, env=dict(environment, **ranked), start_new_session=True))
    return found


def is_alive(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process or its group still runs: forked ranks outlive their parent."""
    if process.poll() is None:
        return True
    try:
        os.killpg(process.pid, 0)
    except OSError:
        return False
    return True


def end(processes: List["subprocess.Popen[bytes]"]) -> None:
    """Ask all that still run to end, and give them time to say where they stood; then kill them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and any(map(is_alive, processes)):
            time.sleep(0.02)


def start(plan: Dict[str, Any], own: List[str]) -> int:
    """Start all ranks and wait; the first failure, or the end of the time, ends the others."""
    os.makedirs(plan["folder"], exist_ok=True)
    met = {} if "first" in plan else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = dict(os.environ, LOCAL_WORLD_SIZE=str(plan["count"]), **met)
    processes = launch_ranks(plan, environment, own)
    until = time.monotonic() + plan["limit_s"]
    failed_at = 0.0
    while any(p.poll() is None for p in processes):
        now = time.monotonic()
        if not failed_at and any(p.poll() for p in processes):
            failed_at = now
        if now > until or (failed_at and now > failed_at + GRACE_S):
            end(processes)
            if now > until:
                return 124
            break
        time.sleep(0.02)
    return next((p.returncode if p.returncode > 0 else 128 - p.returncode for p in processes if p.returncode), 0)


def main(arguments: List[str]) -> None:
    """Be the launcher, or one rank."""
    if arguments[0] == "rank":
        sys.exit(rank(arguments[1], arguments[2:]))
    plan: Dict[str, Any] = json.loads(arguments[1])
    python = plan.get("python", sys.executable)
    sys.exit(start(plan, [python, "-I", "-S", "-E", os.path.abspath(__file__)]))


if __name__ == "__main__":
    main(sys.argv[1:])
