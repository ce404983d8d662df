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

from gpu_mcp_server.hostd.sandbox import seccomp

EPERM = seccomp.RET_ERRNO | errno.EPERM
ENOSYS = seccomp.RET_ERRNO | errno.ENOSYS
EAFNOSUPPORT = seccomp.RET_ERRNO | errno.EAFNOSUPPORT
ARCHES = ("x86_64", "aarch64")
COLUMN = {"x86_64": 0, "aarch64": 1}
TABLES = (
    seccomp.ALLOWED, seccomp.DENIED, seccomp.DENIED_UNLESS_PROFILED, seccomp.DENIED_UNLESS_COUNTED, seccomp.JUDGED,
)  # fmt: skip
X32_BIT = 0x40000000
NEW_NAMESPACES = {"NEWNS": 17, "NEWCGROUP": 25, "NEWUTS": 26, "NEWIPC": 27, "NEWUSER": 28, "NEWPID": 29, "NEWNET": 30}
THREAD = 0x3D0F00  # of pthread_create in glibc 2.36
NO_SUCH_CALL = {
    "_sysctl", "afs_syscall", "arch_specific_syscall", "create_module", "epoll_ctl_old", "epoll_wait_old",
    "get_kernel_syms", "get_thread_area", "getpmsg", "putpmsg", "query_module", "security", "set_thread_area",
    "tuxcall", "vserver",
}  # fmt: skip
"""Headers keep their numbers, and no kernel of the two architectures has them: the filter says ENOSYS as well."""
OF_OTHERS = re.compile(r"\w+_time64|(clock|timer|timerfd)_(g|s)ettime64|clock_adjtime64|sync_file_range2|syscalls")
"""What asm-generic/unistd.h has for 32-bit machines, or as a count."""
UNKNOWN_ON_PURPOSE = {"file_getattr", "file_setattr", "listns"}
"""Calls newer than the table: who has ENOSYS falls back, to an ioctl or /proc."""

CALLS = """
import ctypes, json, os, socket, sys
from gpu_mcp_server.hostd.sandbox import seccomp
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
tables = (seccomp.ALLOWED, seccomp.DENIED, seccomp.DENIED_UNLESS_PROFILED, seccomp.DENIED_UNLESS_COUNTED,
          seccomp.JUDGED)
known = {numbers[column] for table in tables for numbers in table.values()}
pid = os.fork()
if pid == 0:
    os._exit(7)
print(json.dumps({
    "denied": {n: call(v, 16, 0, 0, 0, 0) for n, v in seccomp.denied_numbers(seccomp.architecture()).items()
               if n not in ("reboot", "vhangup")},
    "unknown": {n: call(n, -1, -1, -1, -1, -1) for n in range(601) if n not in known},
    "clone_newuser": call(seccomp.JUDGED["clone"][column], 0x10000000 | 17, 0, 0, 0, 0),
    "personalities": {p: call(seccomp.JUDGED["personality"][column], p) for p in (0xFFFFFFFF, 0, 8, 1 << 20, 1 << 22)},
    "clone3": call(seccomp.JUDGED["clone3"][column], 0, 0),
    "tiocsti": call(seccomp.JUDGED["ioctl"][column], 0, 0x5412, 0),
    "families": {f: family(f) for f in (1, 2, 10, 16, 17, 38, 40)},
    "child": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
}))
"""


def run_filter(code: bytes, arch: int, number: int, *arguments: int) -> int:
    return trace_filter(code, arch, number, *arguments)[0]


def steps(code: bytes, arch: int, number: int, *arguments: int) -> int:
    return trace_filter(code, arch, number, *arguments)[1]


def trace_filter(code: bytes, arch: int, number: int, *arguments: int) -> tuple[int, int]:
    """Return the answer and the count of instructions."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(list(arguments) + [0] * 6)[:6])
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator, at, count = 0, 0, 0
    while True:
        kind, then, otherwise, value = instructions[at]
        count += 1
        at += 1
        if kind == seccomp.LOAD:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif kind == seccomp.AND:
            accumulator &= value
        elif kind == seccomp.RETURN:
            return value, count
        else:
            taken = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_AT_LEAST: accumulator >= value,
                seccomp.JUMP_ANY_BIT: bool(accumulator & value),
            }[kind]
            at += then if taken else otherwise


def answers(arch: str, name: str, *arguments: int, **more: bool) -> int:
    (number,) = {table[name][COLUMN[arch]] for table in TABLES if name in table}
    assert number is not None
    return run_filter(seccomp.program(arch, **more), seccomp.AUDIT_ARCH[arch], number, *arguments)


@pytest.mark.parametrize("profiler", [False, True])
@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_known_and_denied_is_eperm_what_is_unknown_enosys_and_the_rest_is_allowed(arch, profiler):
    allowed = set(seccomp.allowed_numbers(arch, profiler).values())
    denied = set(seccomp.denied_numbers(arch, profiler).values())
    judged = {numbers[COLUMN[arch]] for numbers in seccomp.JUDGED.values()}
    code = seccomp.program(arch, profiler)
    for number in (*range(601), 0x3FFFFFFF, 0x7FFFFFFF, -1):
        if number not in judged:
            wanted = seccomp.ALLOW if number in allowed else EPERM if number in denied else ENOSYS
            assert run_filter(code, seccomp.AUDIT_ARCH[arch], number) == wanted, number
    assert len(allowed) > 230 and len(denied) > 55


@pytest.mark.parametrize("arch", ARCHES)
def test_every_call_on_the_list_fails_with_eperm(arch):
    assert {answers(arch, name) for name in seccomp.denied_numbers(arch)} == {EPERM}


def test_no_call_has_two_answers_and_names_are_sorted():
    names = [name for table in TABLES for name in table]
    assert len(names) == len(set(names))
    assert [list(table) for table in TABLES] == [sorted(table) for table in TABLES]
    for column in COLUMN.values():
        numbers = [n for table in TABLES for entry in table.values() if (n := entry[column]) is not None]
        assert len(numbers) == len(set(numbers))
    assert set(seccomp.JUDGED) == set(seccomp.JUDGMENTS)


@pytest.mark.parametrize("profiler", [False, True])
@pytest.mark.parametrize("arch", ARCHES)
def test_an_answer_takes_few_instructions(arch, profiler):
    """One by one, the 55 comparisons of a deny-list took 62 for what it allowed."""
    code = seccomp.program(arch, profiler)
    assert len(code) // 8 < 256
    assert max(steps(code, seccomp.AUDIT_ARCH[arch], number, 99, 99) for number in range(601)) <= 16


@pytest.mark.parametrize("arch", ARCHES)
def test_a_profiler_may_trace_and_others_may_not(arch):
    for name in ("ptrace", "process_vm_readv"):
        assert answers(arch, name) == EPERM
        assert answers(arch, name, profiler=True) == seccomp.ALLOW
    assert answers(arch, "perf_event_open", profiler=True) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_perf_opens_one_call_alone(arch):
    plain, counted = seccomp.program(arch), seccomp.program(arch, counted=True)
    audit = seccomp.AUDIT_ARCH[arch]
    other = [n for n in range(601) if run_filter(plain, audit, n) != run_filter(counted, audit, n)]
    assert other == [seccomp.DENIED_UNLESS_COUNTED["perf_event_open"][COLUMN[arch]]]
    assert run_filter(counted, audit, other[0]) == seccomp.ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_processes_and_threads_start_but_namespaces_do_not(arch):
    for flags in (17, THREAD, 0x4111, 1 << 31 | THREAD):  # fork, pthread_create, vfork, CLONE_IO
        assert answers(arch, "clone", flags) == seccomp.ALLOW
    for bit in NEW_NAMESPACES.values():
        for upper in (0, 0xFFFFFFFF << 32):
            assert answers(arch, "clone", 1 << bit | 17 | upper) == EPERM
    assert answers(arch, "clone3") == ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_a_personality_may_only_fix_addresses(arch):
    read_implies_exec, mmap_page_zero, linux32, uname26 = 1 << 22, 1 << 20, 8, 1 << 17
    for allowed in (0, 1 << 18, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        assert answers(arch, "personality", allowed) == seccomp.ALLOW
    for denied in (read_implies_exec, mmap_page_zero, linux32, uname26, 1 << 18 | read_implies_exec, 1 << 40 | 1 << 22):
        assert answers(arch, "personality", denied) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_socket_families_other_than_the_four_are_unknown(arch):
    for family in range(50):
        for name in ("socket", "socketpair"):
            assert answers(arch, name, family) == (seccomp.ALLOW if family in (1, 2, 10, 16) else EAFNOSUPPORT)


@pytest.mark.parametrize("arch", ARCHES)
def test_without_a_network_and_its_namespace_there_are_no_sockets_of_the_internet(arch):
    for family in range(50):
        wanted = seccomp.ALLOW if family in (1, 16) else EAFNOSUPPORT
        assert answers(arch, "socket", family, 3, 2, offline=True) == (EPERM if family == 16 else wanted)
        assert answers(arch, "socket", family, 2, offline=True) == wanted
        for more in ({}, {"gpu": True}):
            shared = answers(arch, "socket", family, 2, offline=True, shared_uid=True, **more)
            assert shared == (EPERM if family == 1 else wanted)


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
    assert answers(arch, "socket", 16, raw, shared_uid=True) == seccomp.ALLOW
    assert answers(arch, "prlimit64", 0, 7, shared_uid=True) == seccomp.ALLOW
    assert answers(arch, "prlimit64", 4711, 7, shared_uid=True) == EPERM
    assert answers(arch, "prlimit64", 4711, 7) == seccomp.ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_who_shares_a_uid_and_has_a_gpu_may_listen_and_ask_for_mps_and_hears_that_there_is_none(arch):
    packets, shared = 5, {"shared_uid": True, "gpu": True}
    for kind in range(16):
        for flag in (0, 0o2000000, 0o4000):
            wanted = seccomp.ALLOW if kind == packets else EPERM
            assert answers(arch, "socket", 1, kind | flag, **shared) == wanted
    assert answers(arch, "socket", 16, 3, **shared) == answers(arch, "listen", 3, 128, **shared) == seccomp.ALLOW
    assert answers(arch, "connect", **shared) == seccomp.RET_ERRNO | errno.ENOENT
    assert answers(arch, "socketpair", 1, 2, **shared) == EPERM
    assert answers(arch, "connect", gpu=True) == answers(arch, "connect", shared_uid=True) == seccomp.ALLOW


def test_the_kernel_answers_a_gpu_s_process_so(tmp_path):
    script = """
import os, socket, sys
from gpu_mcp_server.hostd.sandbox import seccomp
def attempt(kind):
    try:
        with socket.socket(socket.AF_UNIX, kind) as end:
            end.connect(sys.argv[1])
        return 0
    except OSError as error:
        return error.errno
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.bind(sys.argv[1])
    door.listen()
    before = attempt(socket.SOCK_SEQPACKET)
    seccomp.Filter(seccomp.program(seccomp.architecture(), offline=True, shared_uid=True, gpu=True)).apply()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.bind("\\0gpu-mcp-test-%d" % os.getpid())
        own.listen()
    print(before, attempt(socket.SOCK_SEQPACKET), attempt(socket.SOCK_STREAM))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "door")], capture_output=True, text=True)
    assert done.stdout.split() == ["0", str(errno.ENOENT), str(errno.EPERM)], done


@pytest.mark.parametrize("arch", ARCHES)
def test_typing_into_a_terminal_is_denied_even_with_junk_in_the_upper_half_of_the_request(arch):
    assert answers(arch, "ioctl", 0, 0x5401) == seccomp.ALLOW
    for request in (0x5412, 0x541C, 0x5412 | 1 << 40):
        assert answers(arch, "ioctl", 0, request) == EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_a_foreign_architecture_is_killed(arch):
    i386, arm = 0x40000003, 0x40000028
    for foreign in (i386, arm, *(v for k, v in seccomp.AUDIT_ARCH.items() if k != arch)):
        assert run_filter(seccomp.program(arch), foreign, 1) == seccomp.KILL_PROCESS


def test_the_x32_interface_does_not_exist():
    for number in (0, 1, 101, 520):
        code = seccomp.program("x86_64")
        assert run_filter(code, seccomp.AUDIT_ARCH["x86_64"], X32_BIT | number) == ENOSYS


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
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    header_has = {name: int(number) for name, number in found if not OF_OTHERS.fullmatch(name)}
    if arch == "aarch64":
        header_has["newfstatat"] = header_has.pop("fstatat")
    ours = {name: entry[COLUMN[arch]] for table in TABLES for name, entry in table.items()}
    unknown = set(header_has) - {name for name, number in ours.items() if number is not None}
    assert unknown <= NO_SUCH_CALL | UNKNOWN_ON_PURPOSE
    assert not (NO_SUCH_CALL | UNKNOWN_ON_PURPOSE) & set(ours)
    newest = max(n for name, n in header_has.items() if name != "arch_specific_syscall")
    later = {name for name, number in ours.items() if number is not None and number > newest} | {"uretprobe", "uprobe"}
    assert {n: v for n, v in ours.items() if n in header_has} == {n: header_has[n] for n in ours if n in header_has}
    assert {name for name, number in ours.items() if number is not None} - set(header_has) <= later


def check_answers(output: str, spared: set[str]) -> None:
    found = json.loads(output)
    assert {name for name, code in found["denied"].items() if code != errno.EPERM} == spared
    assert set(found["unknown"].values()) == {errno.ENOSYS} and len(found["unknown"]) > 150
    assert found["clone_newuser"] == errno.EPERM
    assert found["personalities"] == {
        "4294967295": 0, "0": 0, "8": errno.EPERM, "1048576": errno.EPERM, "4194304": errno.EPERM,
    }  # fmt: skip
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
        "from gpu_mcp_server.hostd.sandbox import seccomp\n"
        "seccomp.install(seccomp.architecture())\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "subprocess.run(['echo', 'process'], check=True)\n"
    )
    done = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["thread", "process"]
