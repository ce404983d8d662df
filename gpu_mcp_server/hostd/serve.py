"""The channel: frames in, frames out, over stdio. One loop, no threads, so that forking is safe."""

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import probe
from .files import FilesError, checked_path, collect
from .host import Host
from .jobs import JobFolder
from .protocol import (
    HEADER,
    PROTOCOL_VERSION,
    ProtocolError,
    frame_sizes,
    job_spec_from_json,
    pack,
    split_attachment,
    to_json,
)
from .supervisor import fork_supervisor

POLL_S = 0.1
READ_BYTES = 1 << 20
MAX_REPLY_OUTPUT = 1 << 20


class Refusal(Exception):
    """A request that cannot be served; becomes the reply's `error`."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.hint = kind, hint


class Waiter:
    """A `wait` request that has no answer yet."""

    def __init__(self, request: Dict[str, Any], folder: JobFolder) -> None:
        self.id = request["id"]
        self.folder = folder
        self.role = str(request.get("role") or "")
        self.offsets = {"stdout": int(request.get("stdout_at", 0)), "stderr": int(request.get("stderr_at", 0))}
        self.on_output = bool(request.get("on_output"))
        self.deadline = time.monotonic() + float(request.get("timeout_s", 0.0))


class Channel:
    """Serves one caller until its end of the stream."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._buffer = bytearray()
        self._jobs = {}  # type: Dict[str, socket.socket]
        self._changed = set()  # type: set[str]
        self._waiters = []  # type: List[Waiter]
        self._verbs = {
            "hello": self._hello,
            "probe": self._probe,
            "gpus": self._gpus,
            "have": self._have,
            "put": self._put,
            "submit": self._submit,
            "record": self._record,
            "read": self._read,
            "fetch": self._fetch,
            "peek": self._peek,
            "cancel": self._cancel,
            "list": self._list,
        }  # type: Dict[str, Callable[[Dict[str, Any], bytes], Tuple[Any, bytes]]]

    def run(self) -> None:
        """Serve until stdin ends; attached jobs notice by their own sockets."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            poll = select.poll()
            poll.register(0, select.POLLIN)
            owners = {}  # type: Dict[int, str]
            for job_id, end in self._jobs.items():
                poll.register(end.fileno(), select.POLLIN)
                owners[end.fileno()] = job_id
            for fd, _ in poll.poll(self._patience()):
                if fd == 0:
                    if not self._receive():
                        return
                elif fd in owners:
                    self._hear(owners[fd])
            self._answer_waiters()
            _reap()

    def _patience(self) -> Optional[float]:
        if not self._waiters:
            return None
        soonest = min(w.deadline for w in self._waiters) - time.monotonic()
        foreign = any(w.folder.id not in self._jobs for w in self._waiters)
        return 1000 * max(0.0, min(soonest, POLL_S) if foreign else soonest)

    def _receive(self) -> bool:
        chunk = os.read(0, READ_BYTES)
        if not chunk:
            return False
        self._buffer += chunk
        while len(self._buffer) >= HEADER.size:
            header, attachment = frame_sizes(bytes(self._buffer[: HEADER.size]))
            whole = HEADER.size + header + attachment
            if len(self._buffer) < whole:
                break
            frame = bytes(self._buffer[:whole])
            del self._buffer[:whole]
            self._serve(frame[HEADER.size : HEADER.size + header], frame[HEADER.size + header :])
        return True

    def _serve(self, text: bytes, attachment: bytes) -> None:
        request = json.loads(text.decode("ascii"))
        try:
            if request["verb"] == "wait":
                self._waiters.append(Waiter(request, self._folder(request)))
                return
            verb = self._verbs.get(request["verb"])
            if verb is None:
                raise Refusal("protocol", "unknown verb %r" % request["verb"])
            answer, payload = verb(request, attachment)
            self._send({"id": request["id"], "ok": answer}, payload)
        except Refusal as refusal:
            self._fail(request, refusal.kind, str(refusal), refusal.hint)
        except (ProtocolError, FilesError) as error:
            self._fail(request, "bad_request", str(error))
        except OSError as error:
            kind = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "host"
            self._fail(request, kind, "%s: %s" % (type(error).__name__, error))

    def _fail(self, request: Dict[str, Any], kind: str, message: str, hint: str = "") -> None:
        self._send({"id": request.get("id"), "error": {"kind": kind, "message": message, "hint": hint}})

    def _send(self, header: Dict[str, Any], attachment: bytes = b"") -> None:
        data = memoryview(pack(header, attachment))
        while data:
            data = data[os.write(1, data) :]

    def _hear(self, job_id: str) -> None:
        try:
            said = self._jobs[job_id].recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._changed.add(job_id)
        if said in (b"", b"end"):
            self._jobs.pop(job_id).close()

    def _answer_waiters(self) -> None:
        now = time.monotonic()
        left = []  # type: List[Waiter]
        for waiter in self._waiters:
            ours = waiter.folder.id in self._jobs
            if ours and waiter.folder.id not in self._changed and now < waiter.deadline:
                left.append(waiter)
                continue
            record = waiter.folder.record()
            leader = waiter.role or waiter.folder.leader()
            streams = {n: waiter.folder.read(leader, n, at, MAX_REPLY_OUTPUT) for n, at in waiter.offsets.items()}
            fresh = waiter.on_output and any(streams.values())
            if record.state != "finished" and now < waiter.deadline and not fresh:
                left.append(waiter)
                continue
            answer = {"record": to_json(record), "stdout": len(streams["stdout"]), "stderr": len(streams["stderr"])}
            self._send({"id": waiter.id, "ok": answer}, streams["stdout"] + streams["stderr"])
        self._waiters = left
        self._changed.clear()

    def _folder(self, request: Dict[str, Any]) -> JobFolder:
        folder = self.host.folders.get(str(request.get("job")))
        if folder is None:
            raise Refusal("not_found", "no job %r on this host" % str(request.get("job"))[:80])
        return folder

    def _hello(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        host = self.host
        return {
            "protocol": PROTOCOL_VERSION, "python": "%d.%d.%d" % sys.version_info[:3], "pid": os.getpid(),
            "level": host.level, "weaker_because": host.weaker_because, "hint": host.hint, "root": os.geteuid() == 0,
        }, b""

    def _probe(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        return probe.probe(self.host, request), b""

    def _gpus(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        gpus = self.host.nvml.gpus()
        for gpu in gpus:
            gpu["locked_by"] = self.host.locks.holder(gpu["uuid"])
            gpu["foreign"] = sum(1 for p in gpu.pop("pids") if not self.host.is_ours(p))
        return {"gpus": gpus, "jobs_running": self.host.folders.running(), "why_none": self.host.nvml.why_not()}, b""

    def _have(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        return {"missing": [s for s in request["sha256"] if not self.host.blobs.has(s)]}, b""

    def _put(self, request: Dict[str, Any], attachment: bytes) -> Tuple[Any, bytes]:
        for sha256, data in split_attachment(request["blobs"], attachment).items():
            self.host.blobs.put(data, sha256)
        return {}, b""

    def _submit(self, request: Dict[str, Any], attachment: bytes) -> Tuple[Any, bytes]:
        self._put({"blobs": request.get("blobs", [])}, attachment)
        spec = job_spec_from_json(request["spec"])
        wanted = {f.sha256 for files in spec.files.values() for f in files}
        for files in spec.files.values():
            for ref in files:
                checked_path(ref.path)
        missing = [s for s in sorted(wanted) if not self.host.blobs.has(s)]
        if missing:
            return {"missing": missing}, b""
        folder = self.host.folders.claim(spec)
        if folder is None:
            return {"claimed": False}, b""
        gpus = self.host.nvml.gpus() if spec.gpus.count else []
        _, end = fork_supervisor(self.host, folder, spec, gpus)
        self._jobs[spec.id] = end
        return {"claimed": True}, b""

    def _record(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        return {"record": to_json(self._folder(request).record())}, b""

    def _read(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        folder = self._folder(request)
        role = str(request.get("role") or folder.leader())
        known = {p.role for p in spec.processes} if (spec := folder.spec()) else set()
        if role not in known or request["stream"] not in ("stdout", "stderr"):
            raise Refusal("not_found", "no stream %s of role %s" % (request["stream"], role))
        data = folder.read(role, request["stream"], int(request["offset"]), min(int(request["size"]), 16 << 20))
        return {"size": len(data)}, data

    def _fetch(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        path = self.host.blobs.path(request["sha256"])
        if not os.path.exists(path):
            raise Refusal("not_found", "no content %s on this host" % request["sha256"][:12])
        with open(path, "rb") as source:
            return {}, source.read()

    def _peek(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        """Take files out of the workspace of a job that still runs."""
        private = self._folder(request).read_json("private.json") or {"workdirs": []}
        found, left = [], []  # type: List[Any], List[str]
        for workdir in private["workdirs"][:1]:
            if os.path.isdir(workdir):
                found, left = collect(workdir, [str(p) for p in request["paths"]], {}, self.host.blobs)
        return {"outputs": [to_json(f) for f in found], "left_out": left}, b""

    def _cancel(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        self.host.folders.cancel(self._folder(request))
        return {}, b""

    def _list(self, request: Dict[str, Any], _: bytes) -> Tuple[Any, bytes]:
        jobs = self.host.folders.recent(min(int(request.get("limit", 20)), 500))
        return {"records": [to_json(f.record()) for f in jobs]}, b""


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def sweep_aside(host: Host) -> None:
    """Clean up after dead supervisors without holding up the channel."""
    if os.fork() == 0:
        try:
            os.setsid()
            host.after_fork(set())
            host.folders.sweep()
        finally:
            os._exit(0)
