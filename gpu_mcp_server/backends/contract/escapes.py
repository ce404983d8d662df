"""Ways out of a sandbox, each tried from inside: what is said to be closed is tried here, not believed.

The rows are those of the trials in which they were found open without the part that closes them, and of three more
modules beside this one. What only shows on the host itself is in the project's tests.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.contract import escapes_kernel, escapes_process_one, escapes_system_calls
from gpu_mcp_server.backends.contract.attempt import (
    ANY,
    COLD,
    MIB,
    PREWARMED,
    PROFILED,
    REFUSED,
    TRY,
    EscapeAttempt,
    ends_as,
    says,
)
from gpu_mcp_server.backends.contract.host import PATH, ContractHost, JobSnapshot
from gpu_mcp_server.hostd.protocol import LEVELS, Limits, ProcessSpec
from gpu_mcp_server.hostd.sandbox.confinement import BY_BUBBLEWRAP

NOT_PREWARMED = 99
"""Exit code of a program that was to be tried in a sandbox made ahead, and is in another one."""
CHECK_PREWARMED = f'import sys\nif b"recvmsg" not in open("/proc/1/cmdline", "rb").read(): sys.exit({NOT_PREWARMED})\n'
"""Only the command line of what waits for a job has that word."""
TRIES_FOR_PREWARMED = 40
PAUSE_S = 0.05
AT_ONCE = 4

ATTEMPTS: tuple[EscapeAttempt, ...] = (
    EscapeAttempt(1, "read SSH keys of any home", "mount namespace", "cat ~/.ssh/id_* /home/*/.ssh/* /root/.ssh/* 2>/dev/null"),
    EscapeAttempt(2, "read /etc/shadow", "mount namespace", "head -c1 /etc/shadow 2>/dev/null"),
    EscapeAttempt(3, "reach the host through /proc/1", "pid namespace", "ls /proc/1/root/home /proc/1/root/root 2>/dev/null"),
    EscapeAttempt(4, "read the server's environment", "scrubbed spawn",
            "tr '\\0' '\\n' </proc/1/environ 2>/dev/null | grep -v '^PATH=\\|^PWD=\\|^SANDBOX='", least="apptainer"),
    EscapeAttempt(5, "read the host's paths on a command line", "options by descriptor",
            "w = open('/proc/1/cmdline', 'rb').read().split(b'\\0')\nprint(*[x for x in w[1:w.index(b'--')] if b'/' in x])",
            python=True, least="apptainer"),
    EscapeAttempt(6, "write core_pattern", "own uid, /proc/sys read-only", "(printf core >/proc/sys/kernel/core_pattern) 2>/dev/null && echo wrote"),
    EscapeAttempt(7, "drop caches, press SysRq", "the same",
            "(echo 1 >/proc/sys/vm/drop_caches) 2>/dev/null && echo dropped; [ -w /proc/sysrq-trigger ] && echo sysrq; true"),
    EscapeAttempt(8, "write the system", "read-only mounts", "for d in / /etc /usr; do (echo x >$d/zz) 2>/dev/null && echo $d; done; true"),
    EscapeAttempt(9, "write beside the workspace", "mount namespace", "(echo x >/tmp/../home/x) 2>/dev/null && echo wrote; true"),
    EscapeAttempt(10, "connect to a service of the host", "network namespace",
            "print(code(lambda: socket.create_connection(('127.0.0.1', 22), 2)))", says(*REFUSED), python=True),
    EscapeAttempt(11, "connect to an abstract socket", "network namespace",
            "print(code(lambda: socket.socket(socket.AF_UNIX).connect('\\0/org/freedesktop/systemd1')))", says(*REFUSED), python=True),
    EscapeAttempt(12, "use Docker's socket or the SSH agent", "mount namespace",
            "print(code(lambda: socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')), os.environ.get('SSH_AUTH_SOCK', 'ENOENT'))",
            says(*REFUSED), python=True),
    EscapeAttempt(13, "send a datagram out", "network namespace; seccomp",
            "print(code(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.2', 53))))",
            says("ENETUNREACH", *REFUSED), python=True),
    EscapeAttempt(14, "open packet, crypto and VM sockets", "seccomp",
            "for f, k in ((17, 3), (38, 5), (40, 1)): print(code(lambda: socket.socket(f, k)))", says("EAFNOSUPPORT", "EPERM"), python=True),
    EscapeAttempt(15, "fork without end", "limit on processes",
            "import time\nn = 0\ntry:\n while n < 3000:\n  if os.fork() == 0: time.sleep(9); os._exit(0)\n  n += 1\nexcept OSError: print('EAGAIN')",
            lambda d: "EAGAIN" in d.text or d.record.status in ("failed", "timeout"), python=True, limits={"processes": 64, "wall_s": 8.0}),
    EscapeAttempt(16, "start threads without end", "limit on processes",
            "import threading, time\nn = 0\ntry:\n while n < 3000: threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); n += 1\n"
            "except RuntimeError: print('EAGAIN')",
            lambda d: "EAGAIN" in d.text or d.record.status in ("failed", "timeout"), python=True, limits={"processes": 64, "wall_s": 8.0}),
    EscapeAttempt(17, "take memory without end", "limit on memory", "b = []\nfor _ in range(150): b.append(bytearray(b'x') * (8 << 20))\n"
            "import time; time.sleep(5); print('took')",
            ends_as("oom"), python=True, limits={"memory_bytes": 128 * MIB}),
    EscapeAttempt(19, "fill /dev/shm", "sized tmpfs", "head -c 100000000 /dev/zero 2>/dev/null >/dev/shm/a; wc -c </dev/shm/a",
            lambda d: int(d.text or 0) <= 8 * MIB, least="namespaces", limits={"shm_bytes": 8 * MIB}),
    EscapeAttempt(20, "fill /tmp", "sized tmpfs", "head -c 100000000 /dev/zero 2>/dev/null >/tmp/a; wc -c </tmp/a",
            lambda d: int(d.text or 0) <= 8 * MIB, least="namespaces", limits={"tmp_bytes": 8 * MIB}),
    EscapeAttempt(21, "write one huge file", "RLIMIT_FSIZE", "head -c 100000000 /dev/zero 2>/dev/null >a; wc -c <a",
            lambda d: int(d.text or 0) <= 8 * MIB, limits={"file_bytes": 8 * MIB}),
    EscapeAttempt(22, "write many large files", "disk quota", "for i in 1 2 3 4 5 6 7 8; do head -c 5000000 /dev/zero >f$i; done; sleep 5; echo wrote",
            ends_as("disk_quota"), limits={"disk_bytes": 8 * MIB}),
    EscapeAttempt(23, "make 20,000 files", "disk quota", "import time\nfor i in range(20000): open('f%d' % i, 'w').close()\ntime.sleep(5)",
            ends_as("disk_quota"), python=True, limits={"disk_files": 1000}),
    EscapeAttempt(24, "make a file of 10 TB", "RLIMIT_FSIZE", "truncate -s 10T big 2>/dev/null && echo made; true"),
    EscapeAttempt(28, "ignore signals and stay", "wall limit", "trap '' TERM INT HUP; sleep 1000", ends_as("timeout"), limits={"wall_s": 0.5}),
    EscapeAttempt(29, "stop and stay", "wall limit", "kill -STOP $$", ends_as("timeout"), limits={"wall_s": 0.5}),
    EscapeAttempt(30, "close the output and stay", "wall limit", "exec >&- 2>&-; sleep 1000", ends_as("timeout"), limits={"wall_s": 0.5}),
    EscapeAttempt(31, "spin", "wall limit", "while :; do :; done", ends_as("timeout"), limits={"wall_s": 0.5}),
    EscapeAttempt(33, "trace process 1", "seccomp, pid namespace", "print(call((101, 117), 0x4206, 1, 0, 0))", says(*REFUSED), python=True),
    EscapeAttempt(34, "make a user namespace", "seccomp, --disable-userns", "unshare -Ur id 2>/dev/null"),
    EscapeAttempt(35, "reach deep into the kernel", "seccomp",
            "for n in ((250, 219), (321, 280), (323, 282), (425, 425), (298, 241), (165, 40), (304, 265)): print(call(n, 0x10000000, 0, 0, 0, 0))",
            says("EPERM"), python=True),
    EscapeAttempt(36, "plant links for the server to follow", "openat2 beneath the workspace",
            "ln -s /etc/hostname leak; ln -s / r; echo x >real", lambda d: [o.path for o in d.record.outputs] == ["real"]),
    EscapeAttempt(37, "plant a pipe for the server to hang on", "regular files only", "mkfifo f", lambda d: not d.record.outputs),
    EscapeAttempt(39, "plant a set-uid program", "modes are stripped", "cp /usr/bin/id s; chmod 4755 s",
            lambda d: [o.mode & 0o7000 for o in d.record.outputs] == [0]),
    EscapeAttempt(42, "flood the output", "kept up to a limit", "head -c 300000000 /dev/zero", lambda d: len(d.stdout) == 65536,
            limits={"output_bytes": 65536}),
    EscapeAttempt(45, "leave a core file", "RLIMIT_CORE", "kill -SEGV $$", lambda d: not d.record.outputs),
    EscapeAttempt(46, "use inherited descriptors", "they are closed", "print(*os.listdir('/proc/self/fd'))", says("0", "1", "2", "3"), python=True),
    EscapeAttempt(47, "find secrets in the environment", "fixed environment", "env | grep -iE 'token|key=|secret|ssh|slurm|docker'"),
    EscapeAttempt(48, "type into the terminal", "session of its own",
            "import fcntl\ndef tty():\n fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')\nprint(code(tty))", says(*REFUSED), python=True),
    EscapeAttempt(49, "open a GPU that is not leased", "only leased nodes",
            "import glob\nprint(*[code(lambda: os.open(p, os.O_RDWR)) for p in glob.glob('/dev/nvidia[0-9]*')] or ['ENOENT'])",
            says(*REFUSED), python=True),
    EscapeAttempt(50, "make a device node", "no capability", "print(code(lambda: os.mknod('n', 0o20600, os.makedev(195, 0))))", says("EPERM", "EACCES"), python=True),
    EscapeAttempt(70, "leave files in /dev", "read-only mount", "(echo x >/dev/zz) 2>/dev/null && echo wrote; true", least="namespaces"),
    *escapes_process_one.ATTEMPTS,
    *escapes_kernel.ATTEMPTS,
    *escapes_system_calls.ATTEMPTS,
)  # fmt: skip

TRIES: tuple[tuple[EscapeAttempt, str], ...] = tuple((each, kind) for each in ATTEMPTS for kind in each.sandboxes)
"""Each attempt with each kind of sandbox in which it is to be tried."""


@dataclass(frozen=True)
class Outcome:
    """Result of an attempt to escape."""

    attempt: EscapeAttempt
    sandbox: str
    """Kind of sandbox."""
    result: str
    """`closed`, `open`, `not closed here` where this level does not promise it, or `not tried`."""
    found: str
    """What it printed or how it ended, shortened."""


async def try_escapes(backend: Backend) -> AsyncGenerator[Outcome]:
    """Try every way out on a host.

    Raises:
        GpuMcpError: If the host cannot be reached, or is lost.
    """
    async with ContractHost(backend) as host, aclosing(try_escapes_on(host)) as outcomes:
        async for outcome in outcomes:
            yield outcome


async def try_escapes_on(host: ContractHost) -> AsyncGenerator[Outcome]:
    """Try every way out, several at a time: many wait for a limit to end them.

    Those in sandboxes made ahead come last, one after the other: none is made ahead while jobs come and go.

    Raises:
        GpuMcpError: If the host is lost.
    """
    places = asyncio.Semaphore(AT_ONCE)

    async def outcome(attempt: EscapeAttempt, sandbox: str) -> Outcome:
        async with places:
            return await try_escape(host, attempt, sandbox)

    tries = [one for one in TRIES if one[1] in kinds_on(host)]
    running = [asyncio.create_task(outcome(*one)) for one in tries if one[1] != PREWARMED]
    try:
        for task in running:
            yield await task
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for one in tries:
        if one[1] == PREWARMED:
            yield await outcome(*one)


def kinds_on(host: ContractHost) -> tuple[str, ...]:
    """Return the kinds of sandbox that differ on a host: none is made ahead where no job has one of its own."""
    return (ANY, COLD, PREWARMED, PROFILED) if host.level in BY_BUBBLEWRAP else (ANY, COLD)


async def try_escape(host: ContractHost, attempt: EscapeAttempt, sandbox: str = ANY) -> Outcome:
    """Try one way out."""
    done = await _ran(host, attempt, sandbox)
    if done is None:
        return Outcome(attempt, sandbox, "not tried", "no sandbox was made ahead of a job")
    promised = LEVELS.index(host.level) >= LEVELS.index(attempt.least)
    result = "closed" if attempt.closed(done) else ("open" if promised else "not closed here")
    said = "".join(c if c.isprintable() else "." for c in " ".join(done.text[:200].split()))[:60]
    return Outcome(attempt, sandbox, result, f"{done.record.status}: {said}" if said else str(done.record.status))


async def _ran(host: ContractHost, attempt: EscapeAttempt, sandbox: str) -> JobSnapshot | None:
    """Run an attempt in a kind of sandbox; None when it was not to be had."""
    script = (CHECK_PREWARMED if sandbox == PREWARMED else "") + (TRY if attempt.python else "") + attempt.script
    limits: dict[str, Any] = {"memory_bytes": 1 << 30, **attempt.limits}
    if sandbox == COLD:
        limits["tmp_bytes"] = Limits().tmp_bytes - 4096  # of another size than those that wait
    more: dict[str, Any] = {"limits": limits, "wall_s": limits.pop("wall_s", 20.0), "outputs": ("*",)}
    argv = ("{python}", "-I", "-S", "-u", "-c", script) if attempt.python else ("/bin/sh", "-c", script)
    if sandbox == PROFILED:
        more["processes"] = (ProcessSpec(argv=argv, env=PATH, profiled=True),)
    if sandbox != PREWARMED:
        return await host.run(*argv, **more)
    for number in range(TRIES_FOR_PREWARMED):
        if (await host.link.call("hello"))[0]["warm"]:
            done = await host.run(*argv, **more)
            if done.exit_code != NOT_PREWARMED:
                return done
        elif number % 10 == 0:
            await host.run("true")  # what was asked for last is made ahead
        await asyncio.sleep(PAUSE_S)
    return None
