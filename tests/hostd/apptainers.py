"""Apptainers for the tests: a real one, and a stand-in that makes the same container with bubblewrap."""

import os
import pwd
import shutil
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.hostd.sandbox.mounts import can_access

PYTHON = "/usr/bin/python3"
STAND_IN = '''#!/usr/bin/python3
"""Understands the one command line that hostd gives; `shows` beside it is what an administrator's bind path would be."""
import csv, os, sys
words = sys.argv[sys.argv.index("exec") + 1 :]
shows = os.path.join(os.path.dirname(sys.argv[0]), "shows")
bwrap = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent"]
mounts, valued, net = [], ("--no-mount", "--hostname", "--pwd", "--network", "--scratch", "--mount"), []
while words[0].startswith("--"):
    option = words.pop(0)
    value = words.pop(0) if option in valued else ""
    if option == "--net":
        net = ["--unshare-net"]
    elif option == "--mount":
        fields = dict(f.partition("=")[::2] for f in next(csv.reader([value])))
        how = "--dev-bind" if fields["source"].startswith("/dev/") else "--ro-bind" if "ro" in fields else "--bind"
        mounts += [how, fields["source"], fields["destination"]]
if os.path.exists(shows):
    mounts += ["--bind", *[open(shows).read()] * 2]
small = [word for folder in ("/tmp", "/dev/shm") for word in ("--size", "67108864", "--tmpfs", folder)]
os.environ["APPTAINER_CONTAINER"] = words[0]
os.execvp("bwrap", [*bwrap, *net, "--bind", words[0], "/", "--dev", "/dev", "--proc", "/proc", *small, *mounts,
          "--remount-ro", "/", "--chdir", "/job", "--", *words[1:]])
'''


def account() -> tuple[int, str]:
    """Return an ordinary user with an account, as Apptainer wants one, and what a command is started by as that user."""
    if os.geteuid() != 0:
        return os.geteuid(), ""
    if not shutil.which("setpriv") or not can_access(str(HOSTD), pwd.getpwnam("nobody").pw_uid, 0o5):
        pytest.skip("root needs setpriv, and a checkout that others can read, to become an ordinary user")
    uid = pwd.getpwnam("nobody").pw_uid
    return uid, f"setpriv --reuid {uid} --regid {uid} --clear-groups"


def surroundings(kind: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return what hostd is started by so that it finds an Apptainer, and its environment; skips where there is none."""
    if sys.platform != "linux" or not Path(PYTHON).exists():
        pytest.skip("it needs Linux and a Python of the system")
    path = "/usr/local/bin:/usr/bin:/bin"
    if kind == "real":
        prefix = os.environ.get("TEST_APPTAINER", "")
        if not prefix and not shutil.which("apptainer", path=path):
            pytest.skip("no apptainer here, and TEST_APPTAINER names no command in whose surroundings there is one")
        return prefix, {"PATH": path}
    if not shutil.which("bwrap"):
        pytest.skip("the stand-in for Apptainer needs bubblewrap")
    (folder / "apptainer").write_text(STAND_IN)
    (folder / "apptainer").chmod(0o755)
    return "", {"PATH": f"{folder}:{path}"}
