"""The children of a supervisor: taking their ends, and killing all that is left below it."""

import os
import select
import time
from typing import List

from ..sandbox import descriptors, processes
from .owner_control import ControlLink
from .role_process import RoleProcess

DYING_S = 5.0
VANISHING_S = 0.0005
REST_S = 0.02
"""Between two rounds of killing what has not died yet."""


class Children:
    """The keepers of a job's roles, and whatever they lose: a supervisor adopts it.

    Args:
        roles: Of the job; the list may fill later.
        links: To trusted roles, which hear of the others' ends; likewise.
    """

    def __init__(self, roles: List[RoleProcess], links: List[ControlLink]) -> None:
        self._roles, self._links = roles, links

    def reap(self) -> bool:
        """Take the ends of children; True when no child is left."""
        while True:
            try:
                # wait4 also returns the CPU time of what the keeper has waited for, which /proc no longer has.
                pid, wait_status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            for role in self._roles:
                if role.pid == pid and not role.ended:
                    role.end(wait_status, used.ru_utime + used.ru_stime)
                    if role.forsaken:
                        self._take_over(role)
                    self._say_exit(role)

    def hear(self, role: RoleProcess) -> None:
        """Take the report of a keeper, which is sooner than its end: a process takes half a millisecond to vanish."""
        if role.read_end():
            self._say_exit(role)

    def _say_exit(self, role: RoleProcess) -> None:
        for link in self._links:
            link.send_exit(role)

    def are_gone(self) -> bool:
        """Say whether no child is left, once those keepers have vanished that have reported their end."""
        limit = time.monotonic() + DYING_S
        while not self.reap():
            if not self._is_vanishing() or time.monotonic() > limit:
                return False
            time.sleep(VANISHING_S)
        return True

    def _is_vanishing(self) -> bool:
        """Say whether only keepers are left that have reported their end."""
        return bool(self._roles) and all(role.reported for role in self._roles)

    def _take_over(self, role: RoleProcess) -> None:
        """Kill a sandbox whose keeper was killed: it lost everything to this process, which still holds the locks."""
        role.kill()
        keepers = {other.pid for other in self._roles}
        processes.kill(pid for pid in processes.children(os.getpid()) if pid not in keepers)

    def roles_without_keeper(self) -> List[RoleProcess]:
        """Return the roles whose keepers were killed by somebody else."""
        return [role for role in self._roles if role.forsaken]

    def kill_all(self, wake_read: int) -> None:
        """Kill until this process has no child left, but for keepers that are about to vanish.

        Args:
            wake_read: Becomes readable when a child has ended.
        """
        for role in self._roles:
            role.kill()
        limit = time.monotonic() + DYING_S
        next_kill = time.monotonic() + REST_S
        # Keepers are spared at first: they kill what is below them, and hold the locks until nothing of it is left.
        keepers = {role.pid for role in self._roles if not role.ended}
        while not (self.reap() or self._is_vanishing()) and time.monotonic() < limit:
            select.select([wake_read], [], [], max(0.0, next_kill - time.monotonic()))
            descriptors.drain(wake_read)
            if time.monotonic() >= next_kill:
                if time.monotonic() > limit - DYING_S / 2:
                    keepers.clear()  # one that was stopped, say
                processes.kill(pid for pid in processes.descendants_of(os.getpid()) if pid not in keepers)
                next_kill = time.monotonic() + REST_S
