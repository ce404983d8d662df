"""A job that runs, as the channel that took it sees it, and the requests that wait for a job's end or output."""

import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ..files.job_files import BlobStore
from ..jobs.client_liveness import touch_client
from ..jobs.job_folder import JobFolder
from ..protocol import to_json

ASKED_S = 0.25
"""Between two notes that somebody waits for a job of another channel."""
MAX_REPLY_OUTPUT = 1 << 20


class RunningJob:
    """One job, until its supervisor has gone.

    Attributes:
        timed: Whether something is timed that the making of a sandbox would disturb.
        lines_up: Whether it imports while it waits for its GPU.
        changed: Whether it has said something since it was last looked at.
        ended: Whether it has said that its record is written.
    """

    def __init__(self, end: socket.socket, timed: bool, lines_up: bool, start_is_news: bool) -> None:
        self._end, self.timed, self.lines_up, self._start_is_news = end, timed, lines_up, start_is_news
        self.changed = self.ended = self._spoke = False

    def fileno(self) -> int:
        """Return the descriptor over which it speaks."""
        return self._end.fileno()

    def receive(self) -> bool:
        """Take what it says; False when it has gone.

        That it started is news if it was said to be queued, or if that is what somebody waits for.
        """
        try:
            said = self._end.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        if not said:
            self._end.close()
            return False
        self._spoke = self.changed = self._spoke or self._start_is_news or said != b"start"
        self.ended = self.ended or said == b"end"
        return True

    def may_have_changed(self, fresh: bool) -> bool:
        """Say whether its folder may hold news for who listens.

        Args:
            fresh: Whether the one who listens has not looked yet.
        """
        return self._spoke and (fresh or self.changed)

    def say(self, what: bytes) -> None:
        """Tell its supervisor something; one that does not listen is not waited for."""
        try:
            self._end.send(what, socket.MSG_DONTWAIT)
        except OSError:
            pass


class WaitRequest:
    """A `wait` request that has no answer yet."""

    def __init__(self, request: Dict[str, Any], folder: JobFolder, blobs: BlobStore) -> None:
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
            touch_client(self.folder)

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
            # A large output is passed over, and smaller ones behind it may still fit.
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
