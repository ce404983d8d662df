"""Forks the supervisor of a job that hostd has claimed."""

import os
import socket
from typing import Any, Dict, List, Tuple

from ..protocol import JobSpec
from .host_resources import Host
from .job_folder import JobFolder
from .reservation import PURPOSE, Reservation
from .supervisor import Supervisor


def fork_supervisor(
    host: Host, folder: JobFolder, spec: JobSpec, gpus: List[Dict[str, Any]]
) -> Tuple[int, socket.socket]:
    """Fork a supervisor for a claimed job, which answers for it from then on.

    Args:
        host: The host that the job runs on.
        folder: The claimed folder.
        spec: What to run.
        gpus: This host's GPUs, asked before the fork: NVML does not survive one.

    Returns:
        Its pid and our end of the socket over which it tells what happens.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        # The child's copy of the descriptor keeps the lock, so the job is never unlocked in between.
        folder.hand_over_lock()
        return pid, ours
    try:
        # A session of its own: signals to hostd's terminal or process group do not reach the job.
        os.setsid()
        host.after_fork({theirs.fileno(), folder.life})
        kind = Reservation if spec.purpose == PURPOSE else Supervisor
        kind(host, folder, spec, theirs, gpus).main()
    finally:
        # _exit skips hostd's own cleanup handlers and buffers, which this process has copies of.
        os._exit(0)
