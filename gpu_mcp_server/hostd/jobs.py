"""Job folders: the claim, the record, the output, and what is left when a supervisor was killed."""

import fcntl
import json
import os
import re
import signal
import time
from typing import Any, Dict, List, Optional

from . import files
from .protocol import JobRecord, JobSpec, ProtocolError, job_record_from_json, job_spec_from_json, to_json

ID = re.compile(r"^[a-z0-9][a-z0-9-]{3,63}$")
KEEP_JOBS = 2000
KEEP_S = 7 * 86400


class JobFolder:
    """One job's folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.id = os.path.basename(path)

    def at(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.path, name)

    def stream(self, role: str, name: str) -> str:
        """Return the path of a role's stdout or stderr."""
        return self.at("%s.%s" % (role, name))

    def read_json(self, name: str) -> Optional[Dict[str, Any]]:
        """Return one of its JSON files, or None."""
        try:
            with open(self.at(name), encoding="utf-8") as text:
                data = json.load(text)
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def write_json(self, name: str, value: Any) -> None:
        """Write one of its files, whole or not at all."""
        files.write_whole(self.at(name), json.dumps(value).encode())

    def spec(self) -> Optional[JobSpec]:
        """Return what was submitted."""
        data = self.read_json("spec.json")
        return job_spec_from_json(data) if data else None

    def claim_life(self) -> int:
        """Take the lock that says that the job's supervisor lives; return its descriptor."""
        fd = os.open(self.at("alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def is_alive(self) -> bool:
        """Say whether a supervisor holds the lock."""
        try:
            fd = os.open(self.at("alive"), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def finish(self, record: JobRecord) -> bool:
        """Write the final record; only the first one counts.

        Returns:
            False when there was one already.
        """
        partial = self.at("record.%d" % os.getpid())
        with open(partial, "w", encoding="utf-8") as out:
            json.dump(to_json(record), out)
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(partial, self.at("record.json"))
        except FileExistsError:
            return False
        finally:
            os.unlink(partial)
        return True

    def record(self) -> JobRecord:
        """Return the final record, or what is known so far.

        A job whose supervisor is gone without a record gets one here: `broken`, or `cancelled` if that was asked.
        """
        final = self.read_json("record.json")
        if final is None:
            alive = self.is_alive()
            final = self.read_json("record.json")
            if final is None and not alive and not self._starting():
                self._bury()
                final = self.read_json("record.json")
        if final is not None:
            return job_record_from_json(final)
        live = self.read_json("live.json") or {"id": self.id, "state": "queued"}
        live.update(stdout_bytes=self.size("main", "stdout"), stderr_bytes=self.size("main", "stderr"))
        return job_record_from_json(live)

    def _starting(self) -> bool:
        """Say whether the folder is so young that its supervisor may not have locked it yet."""
        try:
            return not os.path.exists(self.at("alive")) and time.time() - os.stat(self.path).st_mtime < 5
        except OSError:
            return False

    def _bury(self) -> None:
        live = self.read_json("live.json") or {}
        asked = os.path.exists(self.at("cancelled"))
        record = JobRecord(
            id=self.id,
            state="finished",
            purpose=str(live.get("purpose", "run")),
            status="cancelled" if asked else "broken",
            note="its supervisor was killed; the sandbox died with it",
            level=live.get("level"),
            submitted_at=float(live.get("submitted_at", 0.0)),
            started_at=live.get("started_at"),
            ended_at=time.time(),
            stdout_bytes=self.size("main", "stdout"),
            stderr_bytes=self.size("main", "stderr"),
            stdout_kept=self.size("main", "stdout"),
            stderr_kept=self.size("main", "stderr"),
        )
        self.finish(record)

    def size(self, role: str, name: str) -> int:
        """Return how many bytes of a stream are kept."""
        try:
            return os.stat(self.stream(self.leader() if role == "main" else role, name)).st_size
        except OSError:
            return 0

    def leader(self) -> str:
        """Return the role whose output is the job's."""
        private = self.read_json("private.json")
        return str(private["leader"]) if private else "main"

    def read(self, role: str, name: str, offset: int, size: int) -> bytes:
        """Return part of a stream from a byte offset."""
        try:
            with open(self.stream(role, name), "rb") as stream:
                stream.seek(offset)
                return stream.read(size)
        except OSError:
            return b""

    def signal(self, number: int) -> None:
        """Signal the supervisor, if it lives."""
        data = self.read_json("pid.json")
        if data and self.is_alive():
            try:
                os.kill(int(data["pid"]), number)
            except (OSError, ValueError, KeyError):
                pass


class JobFolders:
    """All jobs of this host."""

    def __init__(self, state: str) -> None:
        self.root = os.path.join(state, "jobs")
        self.work = os.path.join(state, "work")
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        os.makedirs(self.work, mode=0o711, exist_ok=True)

    def claim(self, spec: JobSpec) -> Optional[JobFolder]:
        """Make the job's folder: the one act that makes it exist.

        Returns:
            None when the job exists already, so that a submit sent twice runs once.

        Raises:
            ProtocolError: If the id is not one.
        """
        if not ID.match(spec.id):
            raise ProtocolError("bad job id %r" % spec.id[:80])
        folder = JobFolder(os.path.join(self.root, spec.id))
        try:
            os.mkdir(folder.path, 0o700)
        except FileExistsError:
            return None
        folder.write_json("spec.json", to_json(spec))
        return folder

    def get(self, job_id: str) -> Optional[JobFolder]:
        """Return a job's folder, or None."""
        if not ID.match(job_id):
            return None
        path = os.path.join(self.root, job_id)
        return JobFolder(path) if os.path.isdir(path) else None

    def recent(self, limit: int) -> List[JobFolder]:
        """Return the newest jobs first."""
        with os.scandir(self.root) as found:
            entries = sorted(found, key=lambda e: e.stat().st_mtime, reverse=True)
        return [JobFolder(e.path) for e in entries[:limit]]

    def running(self) -> int:
        """Count the jobs whose supervisor lives."""
        return sum(1 for f in self.recent(200) if not os.path.exists(f.at("record.json")) and f.is_alive())

    def cancel(self, folder: JobFolder) -> None:
        """Ask a job to end."""
        if not os.path.exists(folder.at("record.json")):
            with open(folder.at("cancelled"), "w", encoding="ascii"):
                pass
            folder.signal(signal.SIGTERM)

    def sweep(self) -> None:
        """Finish the jobs of dead supervisors and drop old folders and workspaces that nobody uses."""
        now = time.time()
        for number, folder in enumerate(self.recent(KEEP_JOBS * 2)):
            if folder.record().state != "finished":
                continue
            private = folder.read_json("private.json") or {}
            for workdir in private.get("workdirs", []):
                if os.path.dirname(workdir) == self.work and os.path.isdir(workdir):
                    files.remove_tree(workdir)
            if number > KEEP_JOBS or now - os.stat(folder.path).st_mtime > KEEP_S:
                files.remove_tree(folder.path)
