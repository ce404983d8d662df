"""Job folders: the claim, the record, the output, and what is left when a supervisor was killed.

A folder appears whole, by one rename, and already locked: the lock on it is held from then on by whoever
answers for the job (hostd, then the supervisor). A job that is not locked and has no record was killed, and whoever
finds it so buries it.
"""

import errno
import fcntl
import json
import os
import signal
import time
from dataclasses import replace
from typing import Any, Dict, List, Optional, Set, Tuple, cast

from . import files, trees, undertaker
from .protocol import JobRecord, JobSpec, ProtocolError, job_record_from_json, job_spec_from_json, to_json
from .specification import ID

KEEP_JOBS = 2000
KEEP_S = 7 * 86400
STALE_S = 60.0
"""A workspace is locked by its owner a moment after it is made."""
DYING_S = 5.0
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

    def at(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.path, name)

    def stream(self, role: str, name: str) -> str:
        """Return the path of a role's stdout or stderr."""
        return self.at("%s.%s" % (role, name))

    def read_json(self, name: str) -> Optional[Dict[str, Any]]:
        """Return one of its JSON files, or None."""
        try:
            with open(self.at(name), "rb") as text:
                data: Any = json.loads(text.read().rstrip(b"\0").decode("ascii"))
        except (OSError, ValueError):
            return None
        return cast("Dict[str, Any]", data) if isinstance(data, dict) else None

    def note(self, about: Dict[str, Any]) -> None:
        """Add to what is known of the job while it runs; whoever is killed in between leaves what was there."""
        fd = os.open(self.at("state"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(fd, json.dumps(about).encode() + b"\n")
        finally:
            os.close(fd)

    def noted(self) -> Dict[str, Any]:
        """Return all that was noted."""
        found: Dict[str, Any] = {}
        try:
            with open(self.at("state"), "rb") as text:
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

    def take_life(self) -> bool:
        """Lock the folder; False when somebody holds it, or it is gone."""
        try:
            fd = os.open(self.path, trees.FLAGS)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self.life = fd
        return True

    def leave_life(self) -> None:
        """Close our descriptor of the lock; it stays locked as long as another process has one."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1

    def is_alive(self) -> bool:
        """Say whether somebody answers for the job."""
        return trees.is_locked(self.path)

    def finish(self, record: JobRecord) -> bool:
        """Write the final record; only the first one counts.

        Returns:
            False when there was one already.
        """
        try:
            return self._write_record(record)
        except OSError as error:
            if not files.no_room(error):
                raise
        self._use_space()
        note = "; ".join(n for n in (record.note, "disk_full: the list of outputs is lost") if n)
        return self._write_record(replace(record, outputs=(), outputs_left_out=(), note=note[:2000]))

    def _write_record(self, record: JobRecord) -> bool:
        if self.finished():  # who writes it holds the lock, and the dead leave it, half written, to the next
            return False
        files.write_whole(self.at("record.json"), json.dumps(to_json(record)).encode(), self.at("record.partial"))
        return True

    def keep(self) -> None:
        """Make sure that the record outlasts a loss of power."""
        try:
            fd = os.open(self.at("record.json"), os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)
        except OSError:
            pass

    def write_spec(self, spec: JobSpec) -> None:
        """Write what was submitted, and set room aside behind it for the record, should the disk be full then."""
        data = json.dumps(to_json(spec)).encode()
        fd = os.open(self.at("spec.json"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(fd, data)
            disk = os.fstatvfs(fd)
            if disk.f_bavail * disk.f_frsize < AMPLE_BYTES:
                os.posix_fallocate(fd, 0, len(data) + SPACE_BYTES)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise
        finally:
            os.close(fd)

    def _use_space(self) -> None:
        with open(self.at("spec.json"), "r+b") as text:
            text.truncate(len(text.read().rstrip(b"\0")))

    def finished(self) -> bool:
        """Say whether there is a final record."""
        return os.path.exists(self.at("record.json"))

    def record(self) -> JobRecord:
        """Return the final record, or what is known so far.

        A job that nobody answers for gets one here: `broken`, or `cancelled` if that was asked.
        """
        final = self.read_json("record.json")
        if final is None and not self.is_alive() and self.take_life():
            try:
                final = self.read_json("record.json")
                if final is None:
                    self._bury()
                    final = self.read_json("record.json")
            finally:
                self.leave_life()
        if final is not None:
            return job_record_from_json(final)
        known = self.noted()
        leader = str(known.get("leader", "main"))
        live: Dict[str, Any] = known.get("live") or {"id": self.id, "state": "queued"}
        live.update(stdout_bytes=self.size(leader, "stdout"), stderr_bytes=self.size(leader, "stderr"))
        return job_record_from_json(live)

    def _bury(self) -> None:
        if self.finished():
            os.unlink(self.at("record.json"))  # unreadable: power was lost while it was written
        self.finish(undertaker.bury(self))
        undertaker.clear(self)

    def size(self, role: str, name: str) -> int:
        """Return how many bytes of a stream are kept."""
        try:
            return os.stat(self.stream(role, name)).st_size
        except OSError:
            return 0

    def leader(self) -> str:
        """Return the role whose output is the job's."""
        return str(self.noted().get("leader", "main"))

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
        pid = self.noted().get("pid")
        if isinstance(pid, int) and self.is_alive():
            try:
                os.kill(pid, number)
            except OSError:
                pass


class JobFolders:
    """All jobs of this host. Those that are not over, with all that they leave, are listed in the folder `open`.

    Sandboxes that belong to no job have a folder of the same kind in `nests`, which says what must be cleared away.
    """

    def __init__(self, state: str) -> None:
        self.root = os.path.join(state, "jobs")
        self.work = os.path.join(state, "work")
        self.open = os.path.join(state, "open")
        self.nests = os.path.join(state, "nests")
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        os.makedirs(self.open, mode=0o700, exist_ok=True)
        os.makedirs(self.nests, mode=0o700, exist_ok=True)
        os.makedirs(self.work, mode=0o711, exist_ok=True)

    def claim(self, spec: JobSpec) -> Optional[JobFolder]:
        """Make the job's folder, locked by us: the one act that makes it exist.

        Returns:
            None when the job exists already, so that a submit sent twice runs once.

        Raises:
            ProtocolError: If the id is not one.
        """
        if not ID.match(spec.id):
            raise ProtocolError("bad job id %r" % spec.id[:80])
        final = os.path.join(self.root, spec.id)
        if os.path.isdir(final):
            return None
        folder = JobFolder(os.path.join(self.root, ".%s.%d" % (spec.id, os.getpid())))
        os.mkdir(folder.path, 0o700)
        try:
            folder.take_life()
            folder.write_spec(spec)
            self._list(folder, spec.id)
            os.rename(folder.path, final)
        except OSError as error:
            folder.leave_life()
            trees.remove(folder.path)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return None
            raise
        folder.path, folder.id = final, spec.id
        return folder

    def _list(self, folder: JobFolder, job_id: str) -> None:
        """Enter a job into `open`; a second name for a file is cheaper than a file."""
        try:
            os.link(folder.at("spec.json"), os.path.join(self.open, job_id))
        except FileExistsError:
            pass

    def new_workdir(self) -> str:
        """Return a path for a workspace, to be made; its name says nothing, because the job can see it."""
        return os.path.join(self.work, os.urandom(8).hex())

    def is_open(self, job_id: str) -> bool:
        """Say whether something may be left of a job besides its folder."""
        return os.path.exists(os.path.join(self.open, job_id))

    def get(self, job_id: str) -> Optional[JobFolder]:
        """Return a job's folder, or None."""
        if not ID.match(job_id):
            return None
        path = os.path.join(self.root, job_id)
        return JobFolder(path) if os.path.isdir(path) else None

    def recent(self, limit: int) -> List[JobFolder]:
        """Return the newest jobs first."""
        found = [(changed, path) for path, changed in self._all() if not os.path.basename(path).startswith(".")]
        return [JobFolder(path) for _, path in sorted(found, reverse=True)[:limit]]

    def _all(self) -> List[Tuple[str, float]]:
        found: List[Tuple[str, float]] = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                try:
                    found.append((entry.path, entry.stat(follow_symlinks=False).st_mtime))
                except OSError:
                    continue
        return found

    def unfinished(self) -> List[JobFolder]:
        """Return the jobs that somebody answers for."""
        found = [self.get(name) for name in os.listdir(self.open)]
        return [f for f in found if f is not None and not f.finished() and f.is_alive()]

    def cancel(self, folder: JobFolder) -> None:
        """Ask a job to end."""
        if not folder.finished():
            with open(folder.at("cancelled"), "w", encoding="ascii"):
                pass
            folder.signal(signal.SIGTERM)

    def new_nest(self, about: Dict[str, Any]) -> JobFolder:
        """Note what must be cleared away should this process be killed with a sandbox that has no job."""
        nest = JobFolder(os.path.join(self.nests, os.urandom(8).hex()))
        os.mkdir(nest.path, 0o700)
        nest.take_life()
        nest.note(about)
        return nest

    def drop_nest(self, nest: JobFolder) -> None:
        """Remove a nest's folder: its sandbox is gone, or has a job."""
        trees.remove(nest.path)
        nest.leave_life()

    def clear_nests(self) -> None:
        """Kill and remove what is left of nests that were killed."""
        for name in os.listdir(self.nests):
            nest = JobFolder(os.path.join(self.nests, name))
            if not nest.is_alive() and nest.noted() and nest.take_life():
                undertaker.kill_all(nest.noted())
                undertaker.clear(nest)
                self.drop_nest(nest)
            else:
                self._drop_stale(nest.path, time.time())

    def settle(self, job_id: str) -> None:
        """Do what a supervisor has left undone that was just killed."""
        folder = self.get(job_id)
        limit = time.monotonic() + DYING_S
        while folder is not None and folder.is_alive() and time.monotonic() < limit:
            time.sleep(0.005)  # its end of the socket may close before its lock does
        if folder is not None and folder.record().state == "finished" and not folder.is_alive():
            undertaker.clear(folder)

    def sweep(self) -> None:
        """Finish the jobs of dead supervisors; drop old folders, and workspaces that nobody uses."""
        now = time.time()
        unfinished = os.listdir(self.open)
        claiming = self._drop_broken_claims()
        for name in unfinished:
            folder = self.get(name)
            if folder is None:
                if name not in claiming:
                    _unlink_quietly(os.path.join(self.open, name))
            elif folder.record().state == "finished" and not folder.is_alive():
                undertaker.clear(folder)
        self.clear_nests()
        for name in os.listdir(self.work):
            self._drop_stale(os.path.join(self.work, name), now)
        undertaker.drop_stale_groups()
        old = sorted(self._all(), key=lambda pair: -pair[1])
        for number, (path, changed) in enumerate(old):
            if (number > KEEP_JOBS or now - changed > KEEP_S) and not JobFolder(path).is_alive():
                trees.remove(path)

    def _drop_broken_claims(self) -> Set[str]:
        """Delete what a hostd left that was killed while it claimed; return the jobs that others are claiming."""
        claiming: Set[str] = set()
        for name in os.listdir(self.root):
            if not name.startswith("."):
                continue
            job_id, _, pid = name[1:].rpartition(".")
            if JobFolder(os.path.join(self.root, name)).is_alive() or os.path.exists("/proc/" + pid):
                claiming.add(job_id)
            else:
                trees.remove(os.path.join(self.root, name))
        return claiming

    def _drop_stale(self, path: str, now: float) -> None:
        """Delete what has been there for long and is locked by nobody."""
        try:
            if now - os.stat(path).st_mtime < STALE_S:
                return
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            trees.remove(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
