"""The filter, read by a small interpreter of BPF for both architectures, and in force in real processes."""

import errno
import json
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.hostd import seccomp

EPERM = seccomp.RET_ERRNO | errno.EPERM
ENOSYS = seccomp.RET_ERRNO | errno.ENOSYS
EAFNOSUPPORT = seccomp.RET_ERRNO | errno.EAFNOSUPPORT
ARCHES = ("x86_64", "aarch64")
COLUMN = {"x86_64": 0, "aarch64": 1}

CALLS = """
import ctypes, json, os, socket, sys
from gpu_mcp_server.hostd import seccomp
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return ctypes.get_errno() if result < 0 else 0
def family(number):
    try:
        socket.socket(number, socket.SOCK_STREAM if number in (1, 2, 10) else socket.SOCK_RAW).close()
        return 0
    except OSError as error:
        return error.errno
if sys.argv[1] != "bwrap":
    seccomp.install(seccomp.architecture(), sys.argv[1] == "profiler")
column = list(seccomp.AUDIT_ARCH).index(seccomp.architecture())
pid = os.fork()
if pid == 0:
    os._exit(7)
print(json.dumps({
    "denied": {n: call(v, 16, 0, 0, 0, 0) for n, v in seccomp.denied_numbers(seccomp.architecture()).items()
               if n not in ("reboot", "vhangup")},
    "clone_newuser": call(seccomp.JUDGED["clone"][column], 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": call(seccomp.JUDGED["clone3"][column], 0, 0),
    "tiocsti": call(seccomp.JUDGED["ioctl"][column], 0, 0x5412, 0),
    "families": {f: family(f) for f in (1, 2, 10, 16, 17, 38, 40)},
    "child": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
}))
"""


def run_filter(code: bytes, arch: int, number: int, *arguments: int) -> int:
    data = struct.pack("<iIQ6Q", number, arch, 0, *(list(arguments) + [0] * 6)[:6])
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator, at = 0, 0
    while True:
        kind, then, otherwise, value = instructions[at]
        at += 1
        if kind == seccomp.LOAD:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif kind == seccomp.RETURN:
            return value
        else:
            taken = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_AT_LEAST: accumulator >= value,
                seccomp.JUMP_ANY_BIT: bool(accumulator & value),
            }[kind]
            at += then if taken else otherwise


TABLE = {
    **seccomp.DENIED, **seccomp.DENIED_UNLESS_PROFILED, **seccomp.DENIED_WITH_SHARED_IPC, **seccomp.JUDGED
}  # fmt: skip


def answers(arch: str, name: str, *arguments: int, **more: bool) -> int:
    number = TABLE[name][COLUMN[arch]]
    assert number is not None
    return run_filter(seccomp.program(arch, **more), seccomp.AUDIT_ARCH[arch], number, *arguments)


@pytest.mark.parametrize("arch", ARCHES)
def test_every_call_on_the_list_fails_with_eperm(arch):
    assert {answers(arch, name) for name in seccomp.denied_numbers(arch)} == {EPERM}
    assert len(seccomp.denied_numbers(arch)) > 45


@pytest.mark.parametrize("arch", ARCHES)
def test_a_profiler_may_trace_and_others_may_not(arch):
    for name in ("ptrace", "process_vm_readv"):
        assert answers(arch, name) == EPERM
        assert answers(arch, name, profiler=True) == seccomp.ALLOW
    assert answers(arch, "perf_event_open", profiler=True) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_processes_start_but_user_namespaces_do_not(arch):
    assert answers(arch, "clone", 17) == seccomp.ALLOW
    assert answers(arch, "clone", seccomp.CLONE_NEWUSER | 17) == EPERM
    assert answers(arch, "clone3") == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_socket_families_other_than_the_four_are_unknown(arch):
    for family in range(50):
        for name in ("socket", "socketpair"):
            assert answers(arch, name, family) == (seccomp.ALLOW if family in (1, 2, 10, 16) else EAFNOSUPPORT)


@pytest.mark.parametrize("arch", ARCHES)
def test_without_an_ipc_namespace_nothing_of_system_v_is_made(arch):
    for name in ("shmget", "semget", "msgget"):
        assert answers(arch, name) == seccomp.ALLOW
        assert answers(arch, name, shared_ipc=True) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_who_shares_a_uid_with_others_has_no_way_to_their_sockets_and_limits(arch):
    stream, datagram, raw, packets, closed_on_exec = 1, 2, 3, 5, 0o2000000
    for kind in (stream, datagram, raw, packets):
        connects_again = kind in (datagram, raw)
        for flag in (0, closed_on_exec):
            assert answers(arch, "socket", 1, kind | flag, shared_uid=True) == EPERM
            pair = answers(arch, "socketpair", 1, kind | flag, shared_uid=True)
            assert pair == (EPERM if connects_again else seccomp.ALLOW)
            assert answers(arch, "socket", 1, kind | flag) == answers(arch, "socketpair", 1, kind) == seccomp.ALLOW
    assert answers(arch, "socket", 2, stream, shared_uid=True) == seccomp.ALLOW
    assert answers(arch, "socket", 17, raw, shared_uid=True) == EAFNOSUPPORT
    assert answers(arch, "prlimit64", 0, 7, shared_uid=True) == seccomp.ALLOW
    assert answers(arch, "prlimit64", 4711, 7, shared_uid=True) == EPERM
    assert answers(arch, "prlimit64", 4711, 7) == seccomp.ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_typing_into_a_terminal_is_denied_even_with_junk_in_the_upper_half_of_the_request(arch):
    assert answers(arch, "ioctl", 0, 0x5401) == seccomp.ALLOW
    for request in (0x5412, 0x541C, 0x5412 | 1 << 40):
        assert answers(arch, "ioctl", 0, request) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_landlock_and_ordinary_calls_stay(arch):
    for number in (444, 445, 446, 0, 1, 3, 63, 64):
        if number not in seccomp.denied_numbers(arch).values():
            assert run_filter(seccomp.program(arch), seccomp.AUDIT_ARCH[arch], number) == seccomp.ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_a_foreign_architecture_is_killed(arch):
    i386, arm = 0x40000003, 0x40000028
    for foreign in (i386, arm, *(v for k, v in seccomp.AUDIT_ARCH.items() if k != arch)):
        assert run_filter(seccomp.program(arch), foreign, 1) == seccomp.KILL_PROCESS


def test_the_x32_interface_does_not_exist():
    for number in (0, 1, 101, 520):
        code = seccomp.program("x86_64")
        assert run_filter(code, seccomp.AUDIT_ARCH["x86_64"], seccomp.X32_BIT | number) == ENOSYS


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")


@pytest.mark.parametrize(
    ("arch", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_are_those_of_the_kernel_headers(arch, header):
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    ours = {name: numbers[COLUMN[arch]] for name, numbers in TABLE.items()}
    assert ours == {name: int(known[name]) if name in known else None for name in TABLE}


def check_answers(output: str, spared: set[str]) -> None:
    found = json.loads(output)
    assert {name for name, code in found["denied"].items() if code != errno.EPERM} == spared
    assert found["clone_newuser"] == errno.EPERM
    assert found["clone3"] == errno.ENOSYS
    assert found["tiocsti"] == errno.EPERM
    assert [found["families"][f] for f in ("1", "2", "10")] == [0, 0, 0]
    assert [found["families"][f] for f in ("17", "38", "40")] == [errno.EAFNOSUPPORT] * 3
    assert found["child"] == 7


needs_filter = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ARCHES, reason="the filter is for Linux on two machines"
)


@needs_filter
@pytest.mark.parametrize(("mode", "spared"), [("plain", set()), ("profiler", {"ptrace", "process_vm_readv"})])
def test_a_bound_process_meets_the_filter(mode, spared):
    done = subprocess.run([sys.executable, "-c", CALLS, mode], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, spared)


@needs_filter
def test_bubblewrap_takes_the_same_bytes(tmp_path):
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    if subprocess.run(["bwrap", "--bind", "/", "/", "true"], capture_output=True).returncode != 0:
        pytest.skip("bwrap cannot make namespaces here")
    (tmp_path / "filter").write_bytes(seccomp.program(platform.machine()))
    with (tmp_path / "filter").open("rb") as file:
        done = subprocess.run(
            ["bwrap", "--bind", "/", "/", "--seccomp", str(file.fileno()), "--", sys.executable, "-c", CALLS, "bwrap"],
            capture_output=True, text=True, pass_fds=[file.fileno()],
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, set())


@needs_filter
def test_threads_and_subprocesses_work_under_the_filter():
    script = (
        "import subprocess, threading\n"
        "from gpu_mcp_server.hostd import seccomp\n"
        "seccomp.Filter(seccomp.architecture()).apply()\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "subprocess.run(['echo', 'process'], check=True)\n"
    )
    done = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["thread", "process"]
