"""Doing once for nothing what a job will wait for.

Memory that two processes share since a fork is copied page by page when one of them first writes to it, and Python
writes wherever it reads: the count of references. hostd and a supervisor come to 300 pages each for a job, some
microseconds a page.
"""

import json
from typing import Sequence

from ..jobs.spec_validation import checked
from ..protocol import JobRecord, JobSpec, ProcessRecord, ProcessSpec, job_spec_from_json, pack, to_json


def of_claim(programs: Sequence[str] = ("",)) -> JobSpec:
    """Take a specification apart, check it and put it together again, as hostd does for each job; return it.

    Args:
        programs: One for each process, empty where it is a plain command.
    """
    processes = (
        ProcessSpec(argv=("true",), role="r%d" % number, program=program, env={"NAME": "value"})
        for number, program in enumerate(programs)
    )
    spec = JobSpec(id="rehearsal", processes=tuple(processes))
    text = pack({"id": 0, "verb": "submit", "spec": to_json(spec), "blobs": []}).partition(b"{")
    return checked(job_spec_from_json(json.loads(b"".join(text[1:]).decode("ascii"))["spec"]))


def of_record(spec: JobSpec) -> None:
    """Make a record and put it into words, as a supervisor does at the end."""
    stats = tuple(ProcessRecord(p.role, 0, None, 1, 0) for p in spec.processes)
    record = JobRecord(id=spec.id, state="finished", status="ok", processes=stats, started_at=0.0, ended_at=0.0)
    json.dumps(to_json(record)).encode()
