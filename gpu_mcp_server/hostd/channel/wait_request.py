"""A request that waits for a job's end or output."""

import time
from typing import Any, Dict, List, Optional, Tuple

from ..files.job_files import Blobs
from ..jobs.client_liveness import note_asked
from ..jobs.job_folder import JobFolder
from ..protocol import to_json

ASKED_S = 0.25
"""Between two notes that somebody waits for a job of another channel."""
MAX_REPLY_OUTPUT = 1 << 20


class Waiter:
    """A `wait` request that has no answer yet."""

    def __init__(self, request: Dict[str, Any], folder: JobFolder, blobs: Blobs) -> None:
        self.id = request["id"]
        self.folder, self._blobs = folder, blobs
        self._along_bytes = min(int(request.get("along_bytes", 0)), MAX_REPLY_OUTPUT)
        self.role = str(request.get("role") or "")
        self.offsets = {"stdout": int(request.get("stdout_at", 0)), "stderr": int(request.get("stderr_at", 0))}
        self.on_output = bool(request.get("on_output"))
        self.note_seen: Optional[str] = request.get("note_seen")
        """What the caller knows of the job's place in the queue; None when it does not want to."""
        self.deadline = time.monotonic() + float(request.get("timeout_s", 0.0))
        self.fresh = True
        """Not looked at yet: what it waits for may have come before it."""
        self._noted_at = 0.0

    def note(self) -> None:
        """Note that somebody asks for the job."""
        if time.monotonic() >= self._noted_at + ASKED_S:
            self._noted_at = time.monotonic()
            note_asked(self.folder)

    def answer(self, late: bool) -> Optional[Tuple[Dict[str, Any], bytes]]:
        """Return the answer when the job has ended or has something to say that is asked for, or it is `late`."""
        self.fresh = False
        final = self.folder.read_json("record.json")
        record: Dict[str, Any] = final or to_json(self.folder.record())
        ended = record["state"] == "finished"
        news = late or (self.note_seen is not None and record.get("note", "") != self.note_seen)
        if not ended and not news and not self.on_output:
            return None
        leader = self.role or (record["processes"][0]["role"] if final and final["processes"] else self.folder.leader())
        out, err = (self.folder.read(leader, n, at, MAX_REPLY_OUTPUT) for n, at in self.offsets.items())
        if not ended and not news and not out and not err:
            return None
        listed, along = self._along(record) if ended else ([], b"")
        return {"record": record, "stdout": len(out), "stderr": len(err), "along": listed}, out + err + along

    def _along(self, record: Dict[str, Any]) -> Tuple[List[Tuple[str, int]], bytes]:
        """Return the first outputs that fit into what the caller wants along: hashes and sizes, and contents."""
        listed: List[Tuple[str, int]] = []
        contents: List[bytes] = []
        left = self._along_bytes
        for output in record["outputs"]:
            if output["size"] > left:
                continue
            try:
                with open(self._blobs.path(output["sha256"]), "rb") as source:
                    contents.append(source.read())
            except OSError:
                continue  # it is asked for by itself then, and what is wrong is said
            listed.append((output["sha256"], len(contents[-1])))
            left -= len(contents[-1])
        return listed, b"".join(contents)
