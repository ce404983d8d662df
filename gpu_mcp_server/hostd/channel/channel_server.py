"""The channel: frames in, frames out, over stdio. One loop, no threads, so that forking is safe."""

import errno
import gc
import json
import math
import os
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, cast

from ..files.job_files import FilesError
from ..gpus.broker_client import broker_status
from ..gpus.drain import DrainFiles
from ..jobs.client_liveness import LEAVING
from ..jobs.host_resources import Host
from ..jobs.job_folder import JobFolder
from ..jobs.reservation import PURPOSE, reservation_states
from ..jobs.spec_validation import validate_spec
from ..jobs.supervisor_fork import fork_supervisor
from ..prewarm.prewarm_pool import PrewarmPool, imports_in_line, needs_quiet
from ..probe import host_state, judge_environment
from ..protocol import (
    HEADER,
    PROTOCOL_VERSION,
    JobSpec,
    ProtocolError,
    frame_sizes,
    job_spec_from_json,
    pack,
    split_attachment,
    to_json,
)
from ..sandbox import descriptors, processes
from .running_job import RunningJob, WaitRequest

POLL_S = 0.05
SWEEP_S = 900.0
MAX_QUIET_S = 86400.0
READ_BYTES = 1 << 20
MAX_READ = 16 << 20
NOT_A_FRAME = 3


class RequestRefused(Exception):
    """A request that cannot be served; becomes the reply's `error`."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.hint = kind, hint


class ChannelServer:
    """Serves one caller until its end of the stream."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._buffer = bytearray()
        self._jobs: Dict[str, RunningJob] = {}
        self._waiters: List[WaitRequest] = []
        self._asides: Dict[int, Tuple[Any, bytearray]] = {}
        self._sweep_at = 0.0
        self._drains = DrainFiles(host.locks.folder)
        self._heard_at, self._quiet_s = time.monotonic(), math.inf
        self._pool = PrewarmPool(host)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._verbs: Dict[str, Callable[[Dict[str, Any], memoryview], Tuple[Any, bytes]]] = {
            "hello": self._hello,
            "gpus": self._gpus,
            "have": lambda request, _: ({"missing": self._missing(request["sha256"])}, b""),
            "put": self._put,
            "submit": self._submit,
            "expect": self._expect,
            "record": self._record,
            "read": self._read,
            "fetch": self._fetch,
            "cancel": self._cancel,
            "list": self._list,
            "pool": self._pool_now,
            "drain": lambda request, _: (self._drains.set_drain(request), b""),
            "beat": self._beat,
            "bye": self._bye,
        }

    def run(self) -> int:
        """Serve until stdin ends; attached jobs notice by their own sockets. Returns the exit status."""
        gc.freeze()  # what is here by now stays, and forked supervisors share it until they touch it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.set_blocking(1, False)  # a caller that reads nothing must not hold up jobs: `_send` gives it up
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, processes.ignore_but_wake)
        try:
            while self._turn():
                pass
        except BrokenPipeError:
            return 0
        except ProtocolError as error:
            sys.stderr.write("hostd: %s\n" % error)
            return NOT_A_FRAME
        finally:
            self.host.folders.drop_prepared()
        return 0

    def _turn(self) -> bool:
        self._sweep_when_due()
        if self._pool_due_in() == 0.0:
            self._pool.make()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        owners: Dict[int, str] = {}
        for job_id, job in self._jobs.items():
            poll.register(job.fileno(), select.POLLIN)
            owners[job.fileno()] = job_id
        for fd in (*self._asides, *self._pool.ends()):
            poll.register(fd, select.POLLIN)
        events = poll.poll(self._patience())
        if 0 in (fd for fd, _ in events):
            self._heard_at = time.monotonic()
        elif time.monotonic() >= self._heard_at + self._quiet_s:
            return False  # a line that was cut without a word
        for fd, _ in events:
            if fd == 0:
                if not self._receive():
                    return False
            elif fd in owners:
                self._hear(owners[fd])
            elif fd == self._wake_read:
                descriptors.drain(fd)
            elif fd in self._asides:
                self._take_aside(fd)
            elif fd in self._pool.ends() and not self._pool.receive(fd):
                self._fork(None, lambda: {"cleared": [self.host.folders.clear_prewarmed()]})
        self._answer_waiters()
        processes.reaped_all()
        return True

    def _patience(self) -> float:
        """Return how long nothing is due, in milliseconds."""
        soonest = min(self._sweep_at, self._heard_at + self._quiet_s) - time.monotonic()
        due = self._pool_due_in()
        soonest = soonest if due is None else min(soonest, due)
        for waiter in self._waiters:
            soonest = min(soonest, waiter.deadline - time.monotonic())
            if waiter.folder.id not in self._jobs:
                soonest = min(soonest, POLL_S)
        return 1000 * max(0.0, soonest)

    def _pool_due_in(self) -> Optional[float]:
        jobs = self._jobs.values()
        return self._pool.due_in(bool(jobs), any(j.timed for j in jobs), sum(j.lines_up for j in jobs) > 1)

    def _sweep_when_due(self) -> None:
        """Clean up after dead supervisors, without holding up the channel."""
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_S
            host = self.host
            swept = (host.folders, host.blobs, host.copies, host.trees)
            self._fork(None, lambda: {"swept": [each.sweep() for each in swept]})

    def _receive(self) -> bool:
        try:
            chunk = os.read(0, READ_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        self._buffer += chunk
        while len(self._buffer) >= HEADER.size:
            header, attachment = frame_sizes(bytes(self._buffer[: HEADER.size]))
            whole = HEADER.size + header + attachment
            if len(self._buffer) < whole:
                break
            if len(self._buffer) == whole:
                frame, self._buffer = self._buffer, bytearray()
            else:
                frame = self._buffer[:whole]
                del self._buffer[:whole]
            content = memoryview(frame)[HEADER.size :]
            self._serve(bytes(content[:header]), content[header:])
        return True

    def _serve(self, text: bytes, attachment: memoryview) -> None:
        request: Dict[str, Any] = {}
        try:
            request = json.loads(text.decode("ascii"))
            self._serve_request(request, attachment)
        except RequestRefused as refusal:
            self._fail(request, refusal.kind, str(refusal), refusal.hint)
        except (ProtocolError, FilesError) as error:
            self._fail(request, "bad_request", str(error))
        except BrokenPipeError:
            raise
        except OSError as error:
            kind = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "host"
            self._fail(request, kind, "%s: %s" % (type(error).__name__, error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._fail(request, "bad_request", "not a request: %s: %s" % (type(error).__name__, str(error)[:200]))

    def _serve_request(self, request: Dict[str, Any], attachment: memoryview) -> None:
        name = request["verb"]
        if name == "wait":
            return self._waiters.append(WaitRequest(request, self._folder(request), self.host.blobs))
        if name == "probe":
            gpus = host_state.describe_gpus(self.host)
            return self._fork(request["id"], lambda: dict(host_state.look_around(self.host, request), **gpus))
        if name == "make_environment":
            return self._fork(request["id"], lambda: judge_environment.make_judge_environment(self.host.state, request))
        verb = self._verbs.get(name) if isinstance(name, str) else None
        if verb is None:
            raise RequestRefused("protocol", "unknown verb %.80r" % name)
        answer, payload = verb(request, attachment)
        if name == "gpus" and self.host.amd.asks_a_program():
            return self._fork(request["id"], lambda: host_state.ask_amd_program(self.host, answer))
        self._send({"id": request["id"], "ok": answer}, payload)

    def _fail(self, request: Any, kind: str, message: str, hint: str = "") -> None:
        number = cast("Dict[str, Any]", request).get("id") if isinstance(request, dict) else None
        self._send({"id": number, "error": {"kind": kind, "message": message, "hint": hint}})

    def _send(self, header: Dict[str, Any], attachment: bytes = b"") -> None:
        data = memoryview(pack(header, attachment))
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        while data:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:
                if not poll.poll(min(self._quiet_s, MAX_QUIET_S) * 1000):
                    raise BrokenPipeError("the caller takes nothing") from None

    def _fork(self, number: Any, work: Callable[[], Dict[str, Any]]) -> None:
        """Do what takes long in a child; its answer is sent when it comes."""
        read, write = os.pipe2(os.O_CLOEXEC)
        if os.fork() == 0:
            try:
                os.setsid()
                self.host.after_fork({write})
                with open(write, "wb") as out:
                    out.write(json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(write)
        self._asides[read] = (number, bytearray())

    def _take_aside(self, fd: int) -> None:
        number, said = self._asides[fd]
        chunk = os.read(fd, READ_BYTES)
        said += chunk
        if chunk:
            return
        os.close(fd)
        del self._asides[fd]
        if number is None:
            return
        if said:
            self._send({"id": number, "ok": json.loads(said.decode("ascii"))})
        else:
            self._fail({"id": number}, "host", "it failed; %s/supervisor.log says why" % self.host.state)

    def _hear(self, job_id: str) -> None:
        self._pool.note_activity()
        if self._jobs[job_id].receive():
            return
        del self._jobs[job_id]
        self.host.folders.prepare()  # so that the next claim finds a folder and waits for no disk
        if self.host.folders.is_open(job_id):  # killed, perhaps after its record and before it had cleared away
            self._fork(
                None,
                lambda: {"settled": [self.host.folders.finalize_orphan(job_id), self.host.folders.clear_prewarmed()]},
            )

    def _answer_waiters(self) -> None:
        now = time.monotonic()
        left: List[WaitRequest] = []
        for waiter in self._waiters:
            late = not now < waiter.deadline
            job = self._jobs.get(waiter.folder.id)
            if job is None:
                waiter.note()
            listens = waiter.on_output or waiter.note_seen is not None
            quiet = job is not None and not job.ended and not (listens and job.may_have_changed(waiter.fresh))
            answer = None if quiet and not late else waiter.answer(late)
            if answer is None:
                left.append(waiter)
            else:
                self._send({"id": waiter.id, "ok": answer[0]}, answer[1])
        self._waiters = left
        for job in self._jobs.values():
            job.changed = False

    def _folder(self, request: Dict[str, Any]) -> JobFolder:
        folder = self.host.folders.get(str(request.get("job")))
        if folder is None:
            raise RequestRefused("not_found", "no job %r on this host" % str(request.get("job"))[:80])
        return folder

    def _hello(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        host = self.host
        quiet_s = request.get("quiet_s")
        if quiet_s is not None:
            self._quiet_s = max(0.1, min(float(quiet_s), MAX_QUIET_S))
        return {
            "protocol": PROTOCOL_VERSION,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "pid": os.getpid(),
            "level": host.level,
            "weaker_because": host.weaker_because,
            "hint": host.hint,
            "root": os.geteuid() == 0,
            "allocation": os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID"),
            "warm": self._pool.count_ready(),
        }, b""

    def _beat(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        """Answer, so that both ends know that the line carries."""
        return {}, b""

    def _bye(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        """Take the caller's leave: attached jobs need not wait for its return."""
        for job in self._jobs.values():
            job.say(LEAVING)
        return {}, b""

    def _gpus(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        about = host_state.gpu_state(self.host)
        return dict(about, drained=self._drains.drain_reason(os.geteuid()), pool=self._pool_now(request, _)[0]), b""

    def _pool_now(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        return {"broker": broker_status(self.host.locks), "reservations": reservation_states(self.host.folders)}, b""

    def _missing(self, hashes: Iterable[str]) -> List[str]:
        return [s for s in hashes if not self.host.blobs.has(s)]

    def _put(self, request: Dict[str, Any], attachment: memoryview) -> Tuple[Any, bytes]:
        for sha256, data in split_attachment(request["blobs"], attachment).items():
            self.host.blobs.put(data, sha256)
        return {}, b""

    def _described(self, request: Dict[str, Any], attachment: memoryview) -> Tuple[JobSpec, List[str]]:
        """Return a request's job, whose files are kept now, and which of them are not here."""
        spec = validate_spec(job_spec_from_json(request["spec"]))
        self._put({"blobs": request.get("blobs", [])}, attachment)
        return spec, self._missing(sorted(spec.contents()))

    def _expect(self, request: Dict[str, Any], attachment: memoryview) -> Tuple[Any, bytes]:
        """Make ready for a job that is about to come; nothing is promised by it, or owed."""
        spec, missing = self._described(request, attachment)
        if not missing:
            self._pool.prewarm(spec, self.host.gpus.all_gpus() if spec.gpus.count else [])
        return {"missing": missing}, b""

    def _submit(self, request: Dict[str, Any], attachment: memoryview) -> Tuple[Any, bytes]:
        spec, missing = self._described(request, attachment)
        if missing:  # nothing is claimed yet: the caller sends these and submits again
            return {"missing": missing}, b""
        if self.host.folders.get(spec.id) is None and self._drains.drain_reason(os.geteuid()):
            raise RequestRefused("drained", self._drains.drain_reason(os.geteuid()))
        folder = self.host.folders.claim(spec)
        if folder is None:
            return {"claimed": False}, b""
        self._pool.note_activity()
        gpus = self.host.gpus.all_gpus() if spec.gpus.count else []
        end = self._pool.adopt(folder, spec, gpus)
        if end is None:
            _, end = fork_supervisor(self.host, folder, spec, gpus)
        self._jobs[spec.id] = RunningJob(end, needs_quiet(spec), imports_in_line(spec), spec.purpose == PURPOSE)
        if needs_quiet(spec):
            self._pool.stop_importing()
        return {"claimed": True}, b""

    def _record(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        return {"record": to_json(self._folder(request).record())}, b""

    def _read(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        folder = self._folder(request)
        role = str(request.get("role") or folder.leader())
        spec = folder.spec()
        known = [p.role for p in spec.processes] if spec else []
        if role not in known or request["stream"] not in ("stdout", "stderr"):
            raise RequestRefused("not_found", "no stream %s of role %s" % (request["stream"], role))
        data = folder.read(role, request["stream"], int(request["offset"]), min(int(request["size"]), MAX_READ))
        return {"size": len(data)}, data

    def _fetch(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        try:
            with open(self.host.blobs.path(request["sha256"]), "rb") as source:
                return {}, source.read()
        except FileNotFoundError:
            raise RequestRefused("not_found", "no content %s on this host" % request["sha256"][:12]) from None

    def _cancel(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        self.host.folders.cancel(self._folder(request))
        return {}, b""

    def _list(self, request: Dict[str, Any], _: memoryview) -> Tuple[Any, bytes]:
        jobs = self.host.folders.recent(max(0, min(int(request.get("limit", 20)), 500)))
        return {"records": [to_json(f.record()) for f in jobs]}, b""
