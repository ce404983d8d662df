"""Tables of batch systems' job states, and the message for each state.

Source: squeue(1) "JOB STATE CODES" and "JOB REASON CODES" of Slurm 22.05 to 24.05; qstat(1B) of OpenPBS 23.06.
"""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["waits", "runs", "ends", "ended"]


@dataclass(frozen=True)
class State:
    """Meaning of one of the scheduler's states."""

    phase: Phase
    words: str
    hint: str = ""
    """What helps, for states in which a job did not reach its end."""


SLURM: dict[str, State] = {
    "PENDING": State("waits", "waits in the queue"),
    "CONFIGURING": State("waits", "has its nodes, which are being made ready"),
    "REQUEUED": State("waits", "was put back into the queue"),
    "REQUEUE_FED": State("waits", "was put back into the queue of the federation"),
    "REQUEUE_HOLD": State("waits", "was put back and is held"),
    "SPECIAL_EXIT": State("waits", "was put back and is held, with a special exit state"),
    "RESV_DEL_HOLD": State("waits", "is held: its reservation was deleted", "Correct `reservation` of this host."),
    "SUSPENDED": State("waits", "is suspended, others run first"),
    "STOPPED": State("waits", "is stopped by a signal"),
    "RUNNING": State("runs", "runs"),
    "RESIZING": State("runs", "is changing its size"),
    "SIGNALING": State("runs", "is being signalled"),
    "STAGE_OUT": State("ends", "is staging files out"),
    "COMPLETING": State("ends", "is ending"),
    "COMPLETED": State("ended", "ended by itself"),
    "CANCELLED": State("ended", "was cancelled"),
    "FAILED": State("ended", "failed"),
    "TIMEOUT": State("ended", "reached its time limit", "Raise time_s of this host."),
    "DEADLINE": State("ended", "reached its deadline", "Raise time_s of this host."),
    "OUT_OF_MEMORY": State("ended", "was killed by Slurm for its memory", "Raise `memory` of this host."),
    "PREEMPTED": State("ended", "was preempted by a job of higher priority", "Try again, or choose another qos."),
    "NODE_FAIL": State("ended", "lost its node", "Try again; Slurm takes another node."),
    "BOOT_FAIL": State("ended", "lost its node, which did not boot", "Try again; Slurm takes another node."),
    "REVOKED": State("ended", "was revoked: a sibling of the federation took it"),
}

PBS: dict[str, State] = {
    "Q": State("waits", "waits in the queue"),
    "H": State("waits", "is held"),
    "W": State("waits", "waits for its start time"),
    "T": State("waits", "is being moved"),
    "S": State("waits", "is suspended, others run first"),
    "U": State("waits", "is suspended, its machine is in use"),
    "M": State("waits", "was moved to another server"),
    "B": State("runs", "is an array that has begun"),
    "R": State("runs", "runs"),
    "E": State("ends", "is ending"),
    "F": State("ended", "has ended"),
    "X": State("ended", "has ended, as part of an array"),
}

PBS_ENDS: dict[int, State] = {
    -29: State("ended", "reached its time limit", "Raise time_s of this host."),
    -28: State(
        "ended", "was killed by PBS for its processor time", "Ask for more by `lines`, such as -l cput=08:00:00."
    ),
    -27: State("ended", "was killed by PBS for its memory", "Raise `memory` of this host."),
    -26: State("ended", "was killed by PBS for its virtual memory", "Ask for more by `lines`, such as -l vmem=64gb."),
    -25: State("ended", "was killed by PBS for its processors", "Raise `cpus` of this host."),
    -24: State("ended", "was killed by PBS for its processors", "Raise `cpus` of this host."),
    271: State("ended", "was cancelled, or preempted", "Try again, or choose another queue."),
}
"""Exit statuses that are the system's own doing. Source: JOB_EXEC_* in OpenPBS's job.h; 256 + a signal's number."""

REASONS: dict[str, str] = {
    "None": "Slurm has not looked at it yet",
    "Priority": "others with a higher priority wait as well",
    "Resources": "nothing that fits is free",
    "Dependency": "it waits for another job",
    "BeginTime": "its start time has not come",
    "JobHeldUser": "it is held; `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "Licenses": "a license is not free",
    "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows; lower time_s",
    "AssocGrpGRES": "the account's GPUs are all in use",
    "AssocGrpGRESMinutes": "the account's GPU minutes are used up",
    "AssocMaxJobsLimit": "the account runs as many jobs as it may",
    "QOSMaxGRESPerUser": "you hold as many GPUs as this qos allows",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as this qos allows",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the qos allows; lower time_s",
    "QOSGrpGRES": "the GPUs of this qos are all in use",
    "BadConstraints": "no node meets its constraint",
    "NodeDown": "a node that it needs is down",
}


def slurm_state(name: str) -> State:
    """Return the meaning of a state; one that is not in the table is taken for a waiting one and named."""
    word = name.split()[0].rstrip("+") if name.split() else ""
    return SLURM.get(word) or State("waits", f"is in Slurm's state {name!r}")


def pbs_state(name: str) -> State:
    """Return the same for PBS."""
    return PBS.get(name) or State("waits", f"is in PBS's state {name!r}")


def pbs_end(status: int) -> State:
    """Return what an exit status of a job of PBS means."""
    if not status:
        return State("ended", "ended by itself")
    if status in PBS_ENDS:
        return PBS_ENDS[status]
    why = f"was killed by signal {status - 256}" if status > 256 else f"has ended with status {status}"
    return State("ended", why)


def reason_in_words(reason: str) -> str:
    """Return why a job waits: Slurm's word, and what it means."""
    word = reason.strip("()").split(",")[0].split()[0] if reason.strip("() ") else "None"
    said = REASONS.get(word)
    return f"{word}: {said}" if said else reason.strip("()")
