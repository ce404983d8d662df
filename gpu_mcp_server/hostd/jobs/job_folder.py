"""Job folders: the claim, the record, the output, and what is left when a supervisor was killed.

A folder appears whole, by one rename, and already locked: the lock on it is held from then on by whoever
answers for the job (hostd, then the supervisor). A job that is not locked and has no record was killed, and whoever
finds it so buries it.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import Any, Dict, Optional, cast

from ..files import file_trees, job_files
from ..protocol import JobRecord, JobSpec, job_record_from_json, job_spec_from_json, to_json
from . import orphan_cleanup

SPACE_BYTES = 64 << 10
"""Set aside on the disk for the record of each job, so that a full disk does not cost it."""
AMPLE_BYTES = 16 << 30
"""With so much left nothing is set aside, which takes a third of the time of a claim."""


class JobFolder:
    """One job's folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.id = os.path.basename(path)
        self.life = -1
        """The descriptor that holds the lock on the folder, in the process that answers for the job."""

    def path_of(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.path, name)

    def stream(self, role: str, name: str) -> str:
        """Return the path of a role's stdout or stderr."""
        return self.path_of("%s.%s" % (role, name))

    def read_json(self, name: str) -> Optional[Dict[str, Any]]:
        """Return one of its JSON files, or None."""
        try:
            with open(self.path_of(name), "rb") as text:
                # NULs are the room set aside behind a specification for the record.
                data: Any = json.loads(text.read().rstrip(b"\0").decode("ascii"))
        except (OSError, ValueError):
            return None
        return cast("Dict[str, Any]", data) if isinstance(data, dict) else None

    def update_notes(self, about: Dict[str, Any]) -> None:
        """Add to what is known of the job while it runs; whoever is killed in between leaves what was there."""
        fd = os.open(self.path_of("state"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            job_files.write_all(fd, json.dumps(about).encode() + b"\n")
        finally:
            os.close(fd)

    def read_notes(self) -> Dict[str, Any]:
        """Return all that was noted."""
        found: Dict[str, Any] = {}
        try:
            with open(self.path_of("state"), "rb") as text:
                # A writer that was killed leaves half a line, which has no newline at its end.
                lines = text.read().split(b"\n")[:-1]
            for line in lines:
                found.update(json.loads(line.decode("ascii")))
        except (OSError, ValueError):
            pass
        return found

    def spec(self) -> Optional[JobSpec]:
        """Return what was submitted."""
        data = self.read_json("spec.json")
        return job_spec_from_json(data) if data else None

    def take_lock(self) -> bool:
        """Lock the folder; False when somebody holds it, or it is gone."""
        try:
            fd = os.open(self.path, file_trees.FLAGS)
        except OSError:
            return False
        try:
            # flock belongs to the open file, which forks share: it ends with the last of them, even by SIGKILL.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self.life = fd
        return True

    def hand_over_lock(self) -> None:
        """Close our descriptor of the lock; it stays locked as long as another process has one."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1

    def is_alive(self) -> bool:
        """Say whether somebody answers for the job."""
        return file_trees.is_locked(self.path)

    def finish(self, record: JobRecord) -> bool:
        """Write the final record; only the first one counts.

        Returns:
            False when there was one already.
        """
        try:
            return self._write_record(record)
        except OSError as error:
            if not job_files.disk_full_message(error):
                raise
        self._use_space()
        note = "; ".join(n for n in (record.note, "disk_full: the list of outputs is lost") if n)
        status = "broken" if record.status == "ok" and record.outputs else record.status
        return self._write_record(record._replace(status=status, outputs=(), outputs_left_out=(), note=note[:2000]))

    def _write_record(self, record: JobRecord) -> bool:
        if self.has_final_record():  # who writes it holds the lock, and the dead leave it, half written, to the next
            return False
        job_files.write_whole(
            self.path_of("record.json"), json.dumps(to_json(record)).encode(), self.path_of("record.partial")
        )
        return True

    def keep(self) -> None:
        """Make sure that the record outlasts a loss of power."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path_of("record.json"), os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)

    def write_spec(self, spec: JobSpec) -> None:
        """Write what was submitted, and set room aside behind it for the record, should the disk be full then."""
        data = json.dumps(to_json(spec)).encode()
        fd = os.open(self.path_of("spec.json"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            job_files.write_all(fd, data)
            disk = os.fstatvfs(fd)
            if disk.f_bavail * disk.f_frsize < AMPLE_BYTES:
                # Truncating the file later frees these blocks for the record.
                os.posix_fallocate(fd, 0, len(data) + SPACE_BYTES)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise
        finally:
            os.close(fd)

    def _use_space(self) -> None:
        with open(self.path_of("spec.json"), "r+b") as text:
            text.truncate(len(text.read().rstrip(b"\0")))

    def has_final_record(self) -> bool:
        """Say whether there is a final record."""
        return os.path.exists(self.path_of("record.json"))

    def record(self) -> JobRecord:
        """Return the final record, or what is known so far.

        A job that nobody answers for gets one here: `broken`, or `cancelled` if that was asked.
        """
        final = self.read_json("record.json")
        # The record is read before and again under the lock: another reader may have buried the job meanwhile.
        if final is None and not self.is_alive() and self.take_lock():
            try:
                final = self.read_json("record.json")
                if final is None:
                    self._bury()
                    final = self.read_json("record.json")
            finally:
                self.hand_over_lock()
        if final is not None:
            return job_record_from_json(final)
        known = self.read_notes()
        leader = str(known.get("leader", "main"))
        live: Dict[str, Any] = known.get("live") or {"id": self.id, "state": "queued"}
        live.update(stdout_bytes=self.size(leader, "stdout"), stderr_bytes=self.size(leader, "stderr"))
        return job_record_from_json(live)

    def _bury(self) -> None:
        if self.has_final_record():
            os.unlink(self.path_of("record.json"))  # unreadable: power was lost while it was written
        private = self.read_notes()
        # All must be dead before the record says that the job is over.
        left = orphan_cleanup.kill_leftovers(private)
        self.finish(self._record_of_killed("its supervisor was killed; %s" % (left or "the sandbox died with it")))
        orphan_cleanup.remove_workdirs(self.path, private)

    def _record_of_killed(self, note: str) -> JobRecord:
        private, spec = self.read_notes(), self.read_json("spec.json") or {}
        live: Dict[str, Any] = private.get("live") or {}
        sizes = {name: self.size(self.leader(), name) for name in ("stdout", "stderr")}
        return JobRecord(
            id=self.id,
            state="finished",
            purpose=str(spec.get("purpose", "run")),
            status="cancelled" if os.path.exists(self.path_of("cancelled")) else "broken",
            note=note,
            level=private.get("level"),
            weaker_because=str(live.get("weaker_because") or ""),
            gpus=tuple(live.get("gpus") or ()),
            submitted_at=float(live.get("submitted_at") or self._made_at()),
            started_at=live.get("started_at"),
            ended_at=time.time(),
            stdout_bytes=sizes["stdout"],
            stderr_bytes=sizes["stderr"],
            stdout_kept=sizes["stdout"],
            stderr_kept=sizes["stderr"],
        )

    def _made_at(self) -> float:
        try:
            return os.stat(self.path_of("spec.json")).st_mtime
        except OSError:
            return 0.0

    def size(self, role: str, name: str) -> int:
        """Return how many bytes of a stream are kept."""
        try:
            return os.stat(self.stream(role, name)).st_size
        except OSError:
            return 0

    def leader(self) -> str:
        """Return the role whose output is the job's."""
        return str(self.read_notes().get("leader", "main"))

    def read(self, role: str, name: str, offset: int, size: int) -> bytes:
        """Return part of a stream from a byte offset."""
        try:
            with open(self.stream(role, name), "rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except (OSError, ValueError):
            return b""

    def signal(self, number: int) -> None:
        """Signal the supervisor, if it lives."""
        pid = self.read_notes().get("pid")
        # The lock is asked first: a dead supervisor's pid may be another process's by now.
        if isinstance(pid, int) and self.is_alive():
            try:
                os.kill(pid, number)
            except OSError:
                pass
