"""All jobs of a host: the claim of a new one, those that are not over, and the sweep of what is left."""

import errno
import fcntl
import os
import signal
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..files import file_trees
from ..protocol import JobSpec, ProtocolError
from . import orphan_cleanup
from .job_folder import JobFolder
from .spec_validation import ID

KEEP_JOBS = 2000
KEEP_S = 7 * 86400
STALE_S = 60.0
"""A workspace is locked by its owner a moment after it is made."""
DYING_S = 5.0
FILES = ("spec.json", "state", "record.partial")
"""What every job's folder comes to have."""


class JobStore:
    """All jobs of this host. Those that are not over, with all that they leave, are listed in the folder `open`.

    Sandboxes that belong to no job have a folder of the same kind in `nests`, which says what must be cleared away.
    """

    def __init__(self, state: str) -> None:
        self.root = os.path.join(state, "jobs")
        self.work = os.path.join(state, "work")
        self.open = os.path.join(state, "open")
        self.nests = os.path.join(state, "nests")
        self._prepared: Optional[JobFolder] = None
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
        folder = self._blank() or self._empty(spec.id)
        try:
            folder.write_spec(spec)
            # Listed before the rename: a crash between the two leaves an entry to sweep, never an unlisted job.
            self._list(folder, spec.id)
            # rename onto a folder that is not empty fails, so of two claims of one id exactly one wins.
            os.rename(folder.path, final)
        except OSError as error:
            folder.hand_over_lock()
            file_trees.remove(folder.path)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return None
            raise
        folder.path, folder.id = final, spec.id
        return folder

    def _empty(self, name: str) -> JobFolder:
        """Make a folder that is no job's yet, and lock it."""
        folder = JobFolder(os.path.join(self.root, ".%s.%d" % (name, os.getpid())))
        os.mkdir(folder.path, 0o700)
        folder.take_lock()
        return folder

    def _blank(self) -> Optional[JobFolder]:
        """Take a folder that was prepared, if there is one."""
        folder, self._prepared = self._prepared, None
        # A sweep may hold or have removed a blank folder; the claim then makes one of its own.
        return folder if folder is not None and folder.take_lock() else None

    def prepare(self) -> None:
        """Make a folder for a job to come, with its files, while nobody waits: that is most of what a claim takes."""
        if self._prepared is not None:
            return
        try:
            folder = self._empty("blank-" + os.urandom(8).hex())
            for name in FILES:
                os.close(os.open(folder.path_of(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            folder.hand_over_lock()
            self._prepared = folder
        except OSError:
            pass  # a full disk is told to who claims

    def drop_prepared(self) -> None:
        """Remove what was prepared for a job that did not come; of one that is killed the sweep does."""
        if self._prepared is not None:
            file_trees.remove(self._prepared.path)

    def _list(self, folder: JobFolder, job_id: str) -> None:
        """Enter a job into `open`; a second name for a file is cheaper than a file."""
        try:
            os.link(folder.path_of("spec.json"), os.path.join(self.open, job_id))
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

    def unfinished_jobs(self) -> List[JobFolder]:
        """Return the jobs that somebody answers for."""
        found = [self.get(name) for name in os.listdir(self.open)]
        return [f for f in found if f is not None and not f.has_final_record() and f.is_alive()]

    def cancel(self, folder: JobFolder) -> None:
        """Ask a job to end."""
        if not folder.has_final_record():
            # The file comes first: a job that has no process to signal yet finds it when it starts.
            with open(folder.path_of("cancelled"), "w", encoding="ascii"):
                pass
            folder.signal(signal.SIGTERM)

    def create_prewarmed(self, about: Dict[str, Any]) -> JobFolder:
        """Note what must be cleared away should this process be killed with a sandbox that has no job."""
        nest = JobFolder(os.path.join(self.nests, os.urandom(8).hex()))
        os.mkdir(nest.path, 0o700)
        nest.take_lock()
        nest.update_notes(about)
        return nest

    def drop_prewarmed(self, nest: JobFolder) -> None:
        """Remove a nest's folder: its sandbox is gone, or has a job."""
        file_trees.remove(nest.path)
        nest.hand_over_lock()

    def clear_prewarmed(self) -> None:
        """Kill and remove what is left of nests that were killed."""
        for name in os.listdir(self.nests):
            nest = JobFolder(os.path.join(self.nests, name))
            if not nest.is_alive() and nest.read_notes() and nest.take_lock():
                orphan_cleanup.kill_leftovers(nest.read_notes())
                orphan_cleanup.remove_workdirs(nest.path, nest.read_notes())
                self.drop_prewarmed(nest)
            else:
                self._drop_stale(nest.path, time.time())

    def finalize_orphan(self, job_id: str) -> None:
        """Do what a supervisor has left undone that was just killed."""
        folder = self.get(job_id)
        limit = time.monotonic() + DYING_S
        while folder is not None and folder.is_alive() and time.monotonic() < limit:
            time.sleep(0.005)  # its end of the socket may close before its lock does
        if folder is not None and folder.record().state == "finished" and not folder.is_alive():
            orphan_cleanup.remove_cgroups(folder.read_notes())
            orphan_cleanup.remove_workdirs(folder.path, folder.read_notes())

    def sweep(self) -> None:
        """Finish the jobs of dead supervisors; drop old folders, and workspaces that nobody uses."""
        now = time.time()
        # Listed before the claims are: a job of this list is then among the claims, or has its folder.
        unfinished = os.listdir(self.open)
        claiming = self._drop_broken_claims()
        for name in unfinished:
            folder = self.get(name)
            if folder is None:
                if name not in claiming:
                    _unlink_quietly(os.path.join(self.open, name))
            elif folder.record().state == "finished" and not folder.is_alive():
                orphan_cleanup.remove_cgroups(folder.read_notes())
                orphan_cleanup.remove_workdirs(folder.path, folder.read_notes())
        self.clear_prewarmed()
        for name in os.listdir(self.work):
            self._drop_stale(os.path.join(self.work, name), now)
        orphan_cleanup.remove_stale_cgroups()
        old = sorted(self._all(), key=lambda pair: -pair[1])
        for number, (path, changed) in enumerate(old):
            if (number > KEEP_JOBS or now - changed > KEEP_S) and not JobFolder(path).is_alive():
                file_trees.remove(path)

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
                file_trees.remove(os.path.join(self.root, name))
        return claiming

    def _drop_stale(self, path: str, now: float) -> None:
        """Delete what has been there for long and is locked by nobody."""
        try:
            if now - os.stat(path).st_mtime < STALE_S:
                return
            # O_NOFOLLOW: a link in this place must not lead a removal elsewhere.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file_trees.remove(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
