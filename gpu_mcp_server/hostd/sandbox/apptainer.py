"""Apptainer as the sandbox where bubblewrap cannot work.

A cluster whose administrator has switched user namespaces off has Apptainer with a set-uid helper; one that merely
lacks bubblewrap may have it without. Each process of a job is a container of its own: an image that is a folder of
nothing but mount points, the system shown read-only, the leased GPU's device nodes alone (never `--nv`, which shows
all). What Apptainer does not do, its process 1 does (`container_init`); its life and death are a keeper's.

Found by trying 1.4.5, set-uid and not: it hands on the descriptors of its caller; `bind path` of its settings holds in
spite of --containall; without --no-mount sys the user's control groups can be written; /tmp and /dev/shm are scratch
folders, which with all else that can be written share one tmpfs of the administrator's size (64 MiB). It wants an
account for the user, so it is nothing for a hostd that is root, whose jobs have uids without one.
"""

import json
import os
import shutil
from typing import Dict, List, Optional, Sequence, Tuple

from . import container_init, descriptors, landlock, seccomp

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
"""What Apptainer itself is started with."""
PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/apptainer/bin")
FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "job")
OPTIONS = (
    "--containall", "--no-home", "--no-init", "--no-eval", "--no-umask", "--no-privs", "--no-nv", "--no-rocm",
    "--no-mount", "sys,home,cwd,tmp,hostfs,bind-paths", "--scratch", "/tmp,/dev/shm", "--uts", "--hostname", "job",
    "--pwd", "/job",
)  # fmt: skip
SYS = ("/sys/devices", "/sys/bus", "/sys/class", "/sys/dev", "/sys/module")
"""What is shown of /sys to those that see a GPU; not /sys/fs, whose control groups the user may own.

KFD's topology lies below devices, and /sys/dev says what a render node is: libdrm, xf86drm.c, `drmNodeIsDRM`."""
SOURCES = (container_init, landlock, seccomp)


class Apptainer:
    """The Apptainer of this host.

    Args:
        program: Its path.
        state: hostd's state folder, where the image is made.
        python: Interpreter that exists inside.
        links: Folders of the system that are links here and so are inside (`/bin`, for one).
    """

    def __init__(self, program: str, state: str, python: str, links: Sequence[str]) -> None:
        self._program, self._python = program, python
        self._image = os.path.join(state, "image")
        for folder in FOLDERS:
            os.makedirs(os.path.join(self._image, folder), exist_ok=True)
        for link in links:
            place = self._image + link
            if os.path.islink(link) and not os.path.islink(place):
                # On merged-/usr systems /bin is a link; a folder in its place would be empty inside.
                os.symlink(os.readlink(link), place)
        # From a folder or a zip file; `inspect` would take longer to import than the rest of this room.
        sources = {module.__name__: vars(module)["__loader__"].get_source(module.__name__) for module in SOURCES}
        self._sources = {name.rpartition(".")[2]: str(source) for name, source in sources.items()}

    def container(
        self,
        argv: Sequence[str],
        env: Dict[str, str],
        shown: Sequence[Tuple[str, str]],
        workdir: str,
        devices: Sequence[str],
        keep: Sequence[int],
        rlimits: Sequence[Tuple[int, int, int]],
        life: int,
        network: bool,
        profiler: bool,
        counted: bool = False,
    ) -> "Tuple[List[str], int]":
        """Return the command of a container for one process, and a descriptor that this must inherit.

        Args:
            argv: Program and arguments, as seen inside.
            env: Its whole environment.
            shown: Pairs of a host's path and the path inside, read-only.
            workdir: What `/job` is.
            devices: Nodes to show.
            keep: Descriptors for the process, under the same numbers.
            rlimits: Its limits: what, soft, hard.
            life: A pipe; the container ends with it, and inherits it.
            network: Leave it the host's network.
            profiler: Let it trace its own children.
            counted: Let perf count its events.
        """
        shown = [*shown, *((path, path) for path in SYS if devices and os.path.isdir(path))]
        told = {
            "argv": list(argv), "env": env, "keep": list(keep), "life": life, "rlimits": list(rlimits),
            "shown": [inside for _, inside in shown], "devices": list(devices), "network": network,
            "profiler": profiler, "counted": counted, "sources": self._sources,
        }  # fmt: skip
        fd = descriptors.memory_file("told", json.dumps(told).encode("ascii"))
        command = [self._program, "--silent", "exec", *OPTIONS, *([] if network else ["--net", "--network", "none"])]
        for outside, inside in shown:
            command += ["--mount", mount(outside, inside) + ",ro"]
        for path, inside in [(workdir, "/job"), *((node, node) for node in devices)]:
            command += ["--mount", mount(path, inside)]
        command += [self._image, self._python, "-I", "-S", "-E", "-c", container_init.BOOT, "--", str(fd)]
        return command, fd


def find(path: Optional[str]) -> str:
    """Return where Apptainer is, by PATH or at one of the usual places; nothing where it is not."""
    return shutil.which("apptainer", path=os.pathsep.join([path or "", *PLACES]).strip(os.pathsep)) or ""


def mount(source: str, destination: str) -> str:
    """Return the words for a mount: comma-separated values, in which a quote doubles."""
    return "type=bind,%s,%s" % (_field("source", source), _field("destination", destination))


def _field(name: str, path: str) -> str:
    word = "%s=%s" % (name, path)
    return '"%s"' % word.replace('"', '""') if set(word) & set(',"\n') else word
