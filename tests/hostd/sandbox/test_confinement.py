"""Escape attempts, each tried from inside, at every level where it must fail."""
# nothing else runs on the loop of a test

import json
import os
import secrets
import socket
import tempfile
from pathlib import Path

import pytest

from tests.hostd.laboratory import Laboratory

ATTEMPTS = r"""
import ctypes, errno, json, os, signal, socket, sys
given = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def code(action):
    try:
        action()
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
def read(path):
    return code(lambda: open(path, "rb").read(1))
def write(path):
    return code(lambda: open(path, "w").write("x"))
def connect(family, address, kind=socket.SOCK_STREAM):
    def do():
        with socket.socket(family, kind) as s:
            s.settimeout(2)
            s.connect(address)
            if kind == socket.SOCK_DGRAM:
                s.send(b"x")
    return code(do)
def family(number):
    return code(lambda: socket.socket(number, socket.SOCK_RAW if number != 40 else socket.SOCK_STREAM))
def call(number, *a):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(x) for x in a])
    return "done" if done >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
numbers = {"x86_64": dict(keyctl=250, bpf=321, userfaultfd=323, io_uring_setup=425, perf_event_open=298, mount=165,
                          open_by_handle_at=304, unshare=272, setns=308, ptrace=101, process_vm_readv=310),
           "aarch64": dict(keyctl=219, bpf=280, userfaultfd=282, io_uring_setup=425, perf_event_open=241, mount=40,
                           open_by_handle_at=265, unshare=97, setns=268, ptrace=117, process_vm_readv=270)}
def tty():
    fd = os.open("/dev/tty", os.O_RDWR)
    import fcntl
    fcntl.ioctl(fd, 0x5412, b"x")
def whole(path):
    try:
        return open(path, "rb").read().decode()
    except PermissionError:
        return ""
def names(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
print(json.dumps({
    "secrets": {p: read(p) for p in given["secrets"]},
    "secret_names": {p: names(p) for p in given["folders"]},
    "pid1_root": names("/proc/1/root/root") + names("/proc/1/root/home"),
    "environ": whole("/proc/1/environ") if given["boxed"] else "",
    "cmdline": whole("/proc/1/cmdline") if given["boxed"] else "",
    "writes": {p: write(p) for p in given["writes"]},
    "tcp": connect(socket.AF_INET, ("127.0.0.1", given["port"])),
    "abstract": connect(socket.AF_UNIX, given["abstract"]),
    "docker": connect(socket.AF_UNIX, "/var/run/docker.sock"),
    "udp": connect(socket.AF_INET, ("192.0.2.2", 53), socket.SOCK_DGRAM),
    "families": {n: family(n) for n in (17, 38, 40)},
    "calls": {n: call(v, 0x10000000, 0, 0, 0, 0) for n, v in numbers[os.uname().machine].items()},
    "kill_all": code(lambda: os.kill(-1, signal.SIGCONT)),
    "kill_server": code(lambda: os.kill(given["server"], 0)),
    "tty": code(tty),
    "mknod": code(lambda: os.mknod("node", 0o20600, os.makedev(195, 0))),
    "gpus": [n for n in names("/dev") if n.startswith("nvidia")],
    "fds": sorted(os.listdir("/proc/self/fd")),
    "env": sorted(os.environ),
    "uid": os.getuid(), "status": [l for l in open("/proc/self/status") if l.startswith(("CapEff", "NoNewPrivs", "Seccomp:"))],
}))
"""


@pytest.fixture
async def attempts(any_lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what each attempt came to, and `boxed` for levels with namespaces."""
    lab = any_lab
    secret = tmp_path / "id_ed25519"
    secret.write_text("secret")
    boxed = lab.level != "landlock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0gpu-mcp-" + secrets.token_hex(8))
        abstract.listen()
        given = {
            "boxed": boxed,
            "secrets": [str(secret), "/etc/shadow", "/root/.bashrc", f"/proc/{os.getpid()}/environ", "/etc/passwd-"],
            "folders": ["/root", "/home", str(lab.state), str(lab.state / "jobs"), str(tmp_path)],
            "writes": ["/zz", "/etc/zz", "/usr/zz", "/dev/zz", "/tmp/../home/zz", str(secret), "/proc/sys/kernel/core_pattern",
                       "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/sys/kernel/zz"],
            "port": tcp.getsockname()[1], "abstract": abstract.getsockname().decode(), "server": os.getpid(),
        }  # fmt: skip
        before = Path("/proc/sys/kernel/core_pattern").read_text()
        done = await lab.python(ATTEMPTS, stdin=json.dumps(given))
        assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    assert done.record.status == "ok", done
    return {**json.loads(done.text), "boxed": boxed}


async def test_every_way_out_that_we_know_is_closed(attempts):
    boxed = attempts["boxed"]
    hidden = {"ENOENT"} if boxed else {"ENOENT", "EACCES"}
    assert set(attempts["secrets"].values()) <= hidden
    assert set(map(tuple, attempts["secret_names"].values())) == {()}
    assert attempts["pid1_root"] == []
    refused = {"EROFS", "ENOENT", "EACCES", "EPERM", "EXDEV"}
    assert set(attempts["writes"].values()) <= refused, attempts["writes"]
    assert (attempts["kill_all"], attempts["kill_server"]) == (("ESRCH", "ESRCH") if boxed else ("done", "EPERM"))
    assert attempts["uid"] != 0
    assert attempts["mknod"] in ("EPERM", "EACCES")
    assert attempts["gpus"] == [] or not boxed
    assert attempts["tty"] in ("ENXIO", "EPERM", "EACCES", "ENOENT")


async def test_the_kernel_s_deep_calls_and_foreign_sockets_are_denied(attempts):
    assert set(attempts["calls"].values()) == {"EPERM"}
    assert set(attempts["families"].values()) == {"EAFNOSUPPORT"}
    assert attempts["tcp"] == ("ECONNREFUSED" if attempts["boxed"] else "EAFNOSUPPORT")
    assert attempts["abstract"] in (("ECONNREFUSED",) if attempts["boxed"] else ("EPERM", "EACCES"))
    # a job without a uid of its own reaches what its person may: no socket by path is made for it at all
    as_person = os.getuid() != 0 and not attempts["boxed"]
    assert attempts["docker"] in (("EPERM",) if as_person else ("ENOENT", "EACCES"))
    assert attempts["udp"] == ("ENETUNREACH" if attempts["boxed"] else "EAFNOSUPPORT")
    seccomp = next(line for line in attempts["status"] if line.startswith("Seccomp"))
    assert seccomp.split()[1] == "2"
    assert "CapEff:\t0000000000000000\n" in attempts["status"]
    assert "NoNewPrivs:\t1\n" in attempts["status"]


async def test_nothing_of_ours_is_handed_on(attempts):
    assert attempts["fds"] == ["0", "1", "2", "3"], "3 is the listing's own"
    assert {e.partition("=")[0] for e in str(attempts["environ"]).split("\0")} <= {"", "PATH", "PWD", "SANDBOX"}
    assert "/gpu-mcp-test" not in str(attempts["cmdline"])
    assert set(attempts["env"]) <= {
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "LANG",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "PWD",
        "TMPDIR",
        "USER",
    }


async def test_the_servers_environment_does_not_reach_a_job(open_lab):
    lab = await open_lab("full", API_TOKEN="planted", SSH_AUTH_SOCK="/planted", SLURM_JOB_ID="7")
    done = await lab.sh("env; tr '\\0' '\\n' </proc/1/environ; tr '\\0' '\\n' </proc/2/environ")
    assert "planted" not in done.text
    assert "SLURM" not in done.text


async def test_nested_user_namespaces_are_refused(boxed):
    done = await boxed.sh("unshare -Ur id; echo $?")
    assert done.text.strip() != "0"
    assert "uid=0" not in done.text


async def test_a_program_that_is_not_there_is_a_failed_job(lab):
    done = await lab.run("/no/such/program")
    assert done.record.status == "failed"
    assert b"/no/such/program" in done.stderr


async def test_signals_are_not_ignored_inside(any_lab):
    done = await any_lab.sh("yes | head -n1; grep SigIgn /proc/self/status")
    assert done.text.splitlines()[0] == "y"
    own = 0b11 << 31  # 32 and 33 belong to the C library: whoever ignores them, no program can undo it
    assert int(done.text.split()[-1], 16) & ~own == 0
    assert done.stderr == b""


async def test_a_segmentation_fault_is_signal_11_and_leaves_no_core(lab):
    done = await lab.sh("kill -SEGV $$", outputs=("*",))
    assert (done.record.status, done.record.processes[0].signal) == ("failed", 11)
    assert done.record.outputs == ()


async def test_stdin_arguments_and_environment_arrive_as_given(any_lab):
    odd = "a b'\"$(id)\n\tü"
    done = await any_lab.run(
        "/bin/sh", "-c", 'cat; printf "%s|%s" "$1" "$ODD"', "sh", odd, env={"ODD": odd}, stdin="in\n"
    )
    assert done.text == f"in\n{odd}|{odd}"


async def test_a_closed_folder_above_the_state_folder_is_got_around(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "x").mkdir()
    lab = await Laboratory.open(tmp_path / "x" / "state")
    try:
        done = await lab.sh("cat given; echo made > new", contents={"given": b"laid\n"}, outputs=("*",))
        assert (done.text, [o.path for o in done.record.outputs]) == ("laid\n", ["new"])
    finally:
        await lab.close()


async def test_a_root_below_tmp_is_shown_and_an_interpreter_in_it_runs(any_lab: Laboratory):
    """The job's own /tmp must not hide what lies below the host's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as other:
        for shown in (folder, other):
            Path(shown).chmod(0o755)
        (Path(other) / "hidden").write_text("x")
        interpreter = Path(folder) / "bin" / "interpreter"
        interpreter.parent.mkdir()
        interpreter.write_text(
            '#!/bin/sh\necho "runs $1"; touch "$0.new" 2>/dev/null || echo closed\nls /tmp/*/hidden\n'
        )
        interpreter.chmod(0o755)
        done = await any_lab.run(str(interpreter), "well", roots=(folder,))
    assert done.text.splitlines() == ["runs well", "closed"], done
