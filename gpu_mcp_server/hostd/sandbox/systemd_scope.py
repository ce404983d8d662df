"""A control group for an ordinary user: hostd starts itself anew in a scope of the user's systemd.

Such a user may make groups only where systemd has delegated some. `systemd-run --user --scope` keeps process, stdio and
environment and only moves to a new group, which `Delegate=yes` hands over. `OOMPolicy=continue` keeps systemd from
ending the scope, and hostd with it, when a job in it runs out of memory; older versions do not know it for scopes.

This was not run where it was written, on a machine without systemd: the decision is tested, the starting is not.

Source: systemd-run(1), systemd.scope(5), systemd.resource-control(5) for Delegate.
"""

import os
import shutil
import subprocess
import sys
from typing import List, Mapping, Optional, Tuple

from . import cgroup

MARK = "GPU_MCP_HOSTD_SCOPED"
"""Set once hostd has tried, so that it tries once."""
SCOPE = ["--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes"]
VARIANTS: Tuple[List[str], List[str]] = (["-p", "OOMPolicy=continue"], [])
TRIAL_S = 5.0
UNIFIED = "/sys/fs/cgroup/cgroup.controllers"


def is_useful(euid: int, environ: Mapping[str, str], unified: bool, limits: bool, bus: bool) -> bool:
    """Say whether a scope would give what is missing.

    Args:
        euid: Root makes its groups itself.
        environ: Our environment.
        unified: Whether the host has control groups of version 2.
        limits: Whether limits on memory and processes work already.
        bus: Whether the user's systemd can be reached.
    """
    return euid != 0 and MARK not in environ and unified and not limits and bus


def runtime_folder(environ: Mapping[str, str], uid: int) -> Optional[str]:
    """Return the folder with the user's bus, which a bare SSH session may not name; None when there is no bus."""
    folder = environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % uid
    return folder if os.path.exists(os.path.join(folder, "bus")) else None


def reexec_in_scope(command: List[str]) -> None:
    """Start `command`, which is this program anew, in a scope where that helps; return where it does not.

    Args:
        command: Program and arguments.
    """
    if os.geteuid() == 0 or MARK in os.environ:
        return
    hierarchy = cgroup.own_hierarchy()
    folder = runtime_folder(os.environ, os.getuid())
    program = shutil.which("systemd-run", path="/usr/local/bin:/usr/bin:/bin")
    limits = hierarchy is not None and hierarchy.limits
    bus = folder is not None and program is not None
    if not is_useful(os.geteuid(), os.environ, os.path.exists(UNIFIED), limits, bus) or program is None:
        return
    environ = dict(os.environ, XDG_RUNTIME_DIR=str(folder))
    # exec replaces this process, so only the environment can tell the next one not to try again.
    environ[MARK] = "1"
    for variant in VARIANTS:
        words = [program, *SCOPE, *variant, "--"]
        # A trial comes first: after an exec that fails late, no process would be left to go on without a scope.
        if _works([*words, "true"], environ):
            os.execve(program, [*words, *command], environ)


def own_command() -> List[str]:
    """Return how this process was started."""
    with open("/proc/self/cmdline", "rb") as text:
        words = [os.fsdecode(word) for word in text.read().split(b"\0")[:-1]]
    # /proc/self/cmdline keeps interpreter options such as -I, which sys.argv has lost.
    return [sys.executable or words[0], *words[1:]]


def _works(argv: List[str], environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
