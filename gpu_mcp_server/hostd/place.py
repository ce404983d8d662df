"""Where a job runs on its host: an identity of its own, and a folder for each of its workspaces."""

import fcntl
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from . import descriptors, files, trees
from .control import ControlLink
from .host import Host, HostRefuses
from .mounts import Mounts
from .protocol import FileRef, JobSpec
from .role import Role


class Place:
    """A uid and workspaces, made and removed by one supervisor.

    Each folder is locked by this process and by the sandboxes, so that a folder that can be locked is one that nobody
    lives in: the kernel hands the lock on with every fork, which no look at /proc is sure to see.

    Attributes:
        slot: The identity.
        workdirs: Folder by name of the workspace.
        locks: Descriptors that hold the uid and the folders; for the sandboxes to hold as well.
    """

    def __init__(self, host: Host, names: Iterable[str]) -> None:
        self._host = host
        self.slot = host.slot()
        self.locks: List[int] = [self.slot.lock]
        self.workdirs: Dict[str, str] = {name: host.folders.new_workdir() for name in sorted(set(names))}

    def make(self) -> None:
        """Make the folders, empty."""
        for workdir in self.workdirs.values():
            os.mkdir(workdir, 0o700)
            self.locks.append(os.open(workdir, trees.FLAGS))
            fcntl.flock(self.locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.slot.uid is not None:
                os.chown(workdir, self.slot.uid, self.slot.uid)

    def rename(self, name: str) -> None:
        """Give the one workspace another name."""
        (workdir,) = self.workdirs.values()
        self.workdirs = {name: workdir}

    def lay(
        self, wanted: Mapping[str, Sequence[FileRef]], laid: Optional[Mapping[str, files.Stamps]] = None
    ) -> Dict[str, files.Stamps]:
        """Lay files, before any process of the job runs; return how they and those `laid` before look, by workspace."""
        found: Dict[str, files.Stamps] = {}
        for name, workdir in self.workdirs.items():
            before = laid.get(name, {}) if laid else {}
            fresh = [ref for ref in wanted.get(name, ()) if ref.path not in before]
            found[name] = {**before, **files.lay(workdir, fresh, self._host.blobs, self.slot.uid)}
        return found

    def reach(self, mounts: Mounts) -> Dict[str, str]:
        """Return the paths under which the job's uid reaches the folders.

        Raises:
            HostRefuses: If there is no way.
        """
        try:
            return {name: mounts.reach(workdir) for name, workdir in self.workdirs.items()}
        except OSError as error:
            hint = "set state_dir to a folder that others may enter"
            raise HostRefuses("refused", "the job's uid cannot reach its folder (%s); %s" % (error, hint)) from error

    def about(self, host: Host, held: descriptors.Bundle, groups: Sequence[str]) -> Dict[str, Any]:
        """Return what must be cleared away should this process be killed, to be noted before any of it is made."""
        return {
            "pid": os.getpid(),
            "level": host.level,
            "held": held.link(),
            "workdirs": self.paths(),
            "groups": list(groups) if host.hierarchy is not None else [],
        }

    def paths(self) -> List[str]:
        """Return the folders."""
        return list(self.workdirs.values())


class Premade:
    """What was made ahead of a job; `warm` makes it.

    Attributes:
        place: Identity and workspaces.
        roles: The processes that wait in it.
        group_names: Names of the roles' groups.
        held: What the sandboxes hold open.
        laid: How the files look that lie there already, by workspace.
    """

    place: Place
    roles: List[Role]
    group_names: List[str]
    held: descriptors.Bundle
    laid: Dict[str, files.Stamps]

    def start(self, spec: JobSpec) -> List[ControlLink]:
        """Let the processes that wait become the job's; return the supervisor's ends of the trusted ones' links."""
        raise NotImplementedError
