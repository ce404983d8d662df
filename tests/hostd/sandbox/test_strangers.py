"""Roles of one job, and jobs of one uid, are strangers to each other: files, /proc, signals, memory, sockets."""

import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.protocol import ProcessSpec
from gpu_mcp_server.hostd.sandbox.mounts import can_access
from tests.hostd.conftest import needs_root, skip_unless
from tests.hostd.laboratory import Laboratory, eventually, wrapped
from tests.hostd.test_ordinary_user import AS_USER, PYTHON, UID

# Shows what it has to whoever asks: a file, memory by name and by key, a socket without a file.
VICTIM = r"""
import ctypes, json, os, signal, socket, sys
libc = ctypes.CDLL(None)
open("secret", "w").write("secret")
key, name = int(sys.argv[1]), sys.argv[2]
libc.shmget(key, 4096, 0o1666)
try:
    open("/dev/shm/" + name, "w").write("secret"); os.chmod("/dev/shm/" + name, 0o666)
except OSError:
    pass
try:
    listener = socket.socket(socket.AF_UNIX); listener.bind("\0" + name); listener.listen()
except OSError:
    pass
struck = []
signal.signal(signal.SIGUSR1, lambda *_: struck.append(1))
link = socket.socket(fileno=int(os.environ["LINK_SECOND"])) if "LINK_SECOND" in os.environ else None
about = json.dumps([os.getpid(), os.getcwd(), key, name]).encode()
if link is None:
    print(about.decode(), flush=True); signal.pause(); print("struck")
else:
    link.send(about); print(link.recv(4096).decode(), bool(struck))
"""

ATTACK = r"""
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
link = socket.socket(fileno=int(os.environ["LINK_FIRST"])) if "LINK_FIRST" in os.environ else None
pid, at, key, name = json.loads(link.recv(4096).decode() if link else sys.argv[1])
reached = []
def reach(what, work):
    try:
        if work() is not False: reached.append(what)
    except (OSError, ValueError): pass
def connect():
    with socket.socket(socket.AF_UNIX) as s: s.connect("\0" + name)
pids = {pid} | {int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid()}
mine = {1, os.getpid(), os.getppid()}
if os.getcwd() != at:
    reach("file", lambda: open(at + "/secret").read()); reach("write", lambda: open(at + "/secret", "a").write("x"))
for other in sorted(pids - mine):
    for kind in ("mem", "environ", "maps"):
        reach(kind, lambda: open("/proc/%d/%s" % (other, kind), "rb").read(1) or False)
    for kind in ("cwd/secret", "root/job/secret"):
        reach(kind, lambda: open("/proc/%d/%s" % (other, kind)).read())
    reach("fd", lambda: os.readlink("/proc/%d/fd/0" % other))
    if other == pid:
        reach("signal", lambda: os.kill(other, signal.SIGUSR1))
        reach("limits", lambda: libc.prlimit(other, 7, (ctypes.c_ulong * 2)(9, 9), None) == 0)
reach("named memory", lambda: open("/dev/shm/" + name).read())
reach("memory by key", lambda: libc.shmget(key, 0, 0) >= 0)
reach("socket", connect)
said = json.dumps(reached)
link.send(said.encode()) if link else print(said)
"""

NAMING = r"""
import json, os, socket, threading
link = socket.socket(fileno=int(os.environ["LINK_FIRST"]))
pid = json.loads(link.recv(4096).decode())[0]
def write(path, text):
    try:
        with open(path, "r+") as file: file.write(text)
    except OSError as error: return error.errno
    return 0
own = [write("/proc/self/%scomm" % below, "named") for below in ("", "task/%d/" % threading.get_native_id())]
theirs = [] if pid == os.getpid() else [("oom_score_adj", "900"), ("autogroup", "19")]  # in a namespace of its own
other = [write("/proc/%d/%s" % (pid, name), text) for name, text in theirs]
link.send(json.dumps([own, other]).encode())
"""


@pytest.fixture(params=["full", "namespaces", "landlock", "namespaces-user", "landlock-user"])
async def lab(request, state: Path) -> AsyncIterator[Laboratory]:
    """Return a hostd of this user, or of an ordinary one, whose roles all have that one's uid."""
    level, _, user = request.param.partition("-")
    if not user:
        opened = await Laboratory.open(state, level)
    else:
        if os.geteuid() != 0 or not shutil.which("setpriv") or not can_access(str(HOSTD), UID, 0o5):
            pytest.skip("cannot become an ordinary user")
        python = wrapped(state, {"GPU_MCP_HOSTD_LEVEL": level, "HOME": "/nonexistent"}, AS_USER, PYTHON)
        state.mkdir(mode=0o700)
        os.chown(state, UID, UID)
        opened = Laboratory(await HostdClient.open(LocalBackend(python=str(python), state_dir=str(state))), state)
    skip_unless(opened, level)
    yield opened
    await opened.close()


RUN = ("{python}", "-I", "-S", "-u", "-c")


async def test_a_role_reaches_nothing_of_another(lab):
    names = (str(secrets.randbelow(1 << 30) + 1), "gpu-mcp-" + secrets.token_hex(8))
    processes = (
        ProcessSpec((*RUN, VICTIM, *names), role="first", workspace="first"),
        ProcessSpec((*RUN, ATTACK), role="second", workspace="second"),
    )
    done = await lab.run(processes=processes, links=(("first", "second"),))
    assert done.text == "[] False\n", done


async def test_who_may_write_to_proc_names_its_threads_and_reaches_nothing_of_another(lab):
    """Without that cuInit fails with CUDA_ERROR_OPERATING_SYSTEM: at level landlock no job had a GPU (H200)."""
    names = (str(secrets.randbelow(1 << 30) + 1), "gpu-mcp-" + secrets.token_hex(8))
    processes = (
        ProcessSpec((*RUN, VICTIM, *names), role="first", workspace="first"),
        ProcessSpec((*RUN, NAMING), role="second", workspace="second", profiled=True),
    )
    done = await lab.run(processes=processes, links=(("first", "second"),))
    own, other = json.loads(done.text.rpartition(" ")[0])
    assert own == [0, 0] and 0 not in other and bool(other) == (lab.level == "landlock"), done


async def test_what_a_job_s_only_role_starts_names_its_threads_too(lab):
    """`sh -c "./a; ./b"` had no GPU at level landlock of an ordinary user: no rule names files of processes to come."""
    script = "sh -c 'echo named >/proc/self/comm && echo wrote' | cat"
    done = await lab.run(processes=(ProcessSpec(("sh", "-c", script), profiled=True),))
    assert done.text == "wrote\n", done


async def test_a_job_reaches_nothing_of_another(lab):
    names = (str(secrets.randbelow(1 << 30) + 1), "gpu-mcp-" + secrets.token_hex(8))
    job = await lab.start(*RUN, VICTIM, *names, until=b"\n")
    about = json.loads((await lab.wait(job, timeout_s=0)).text)
    done = await lab.python(ATTACK, json.dumps(about))
    assert (done.record.status, done.text) == ("ok", "[]\n"), done
    assert (await lab.record(job)).state == "running"
    await lab.link.call("cancel", job=job)
    await lab.wait(job)


@needs_root
async def test_a_job_leaves_no_set_uid_file_to_the_next_holder_of_its_uid(open_lab):
    for level in ("full", "landlock"):
        lab = await open_lab(level)
        script = "id -u; for d in . /tmp /dev/shm /var/tmp /run /run/lock; do cp /bin/sh $d/left && chmod 6755 $d/left; done 2>/dev/null"
        done = await lab.sh(script, outputs=("*",))
        assert [o.mode & 0o7000 for o in done.record.outputs] == [0]
        folders = (lab.state, Path("/dev/shm"), Path("/run/lock"), Path("/var/tmp"))
        assert eventually(lambda f=folders: not any(True for at in f for _ in at.rglob("left")))
        assert not list(Path("/tmp").glob("left"))


async def test_names_that_look_like_options_are_names(lab, tmp_path):
    folder = Path(lab.state.parent) / "a,b --bind=\n,c"
    folder.mkdir(mode=0o755)
    (folder / "shown").write_text("shown")
    (folder / "shown").chmod(0o644)
    script = "import os, sys; print(open(sys.argv[1] + '/shown').read(), sys.argv[2:], os.environ['--bind'])"
    argv = (*RUN, script, str(folder), "--ro-bind", "/root", "/root")
    done = await lab.run(*argv, env={"--bind": "/ /"}, roots=(str(folder),))
    assert done.text == "shown ['--ro-bind', '/root', '/root'] / /\n", done
    refused = await lab.run("--ro-bind", "/root", "/root")
    assert (refused.record.status, refused.stdout) == ("failed", b"")
