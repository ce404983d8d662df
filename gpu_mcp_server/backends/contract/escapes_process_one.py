"""Ways out through process 1 of the sandbox, other processes, signals and descriptors, each tried from inside.

Models: CVE-2019-5736 and CVE-2024-21626 (runc), CVE-2022-31214 (Firejail), Chromium's tests of its sandbox, and the
files of proc_pid_*(5). A program that reaches something names it.
"""

from gpu_mcp_server.backends.contract.attempt import (
    ANY,
    COLD_AND_PREWARMED,
    EACH,
    REFUSED,
    WALLED,
    EscapeAttempt,
    JobSnapshot,
    only_tries,
    says,
)


def _fails_by_itself(done: JobSnapshot) -> bool:
    return (done.record.status, done.exit_code) == ("failed", 3) and b'"status": "ok"' in done.stdout


ATTEMPTS: tuple[EscapeAttempt, ...] = (
    EscapeAttempt(71, "write the memory of process 1", "read-only /proc, Landlock",
            "print(code(lambda: os.open('/proc/1/mem', os.O_RDWR)), code(lambda: os.open('/proc/1/task/1/mem', os.O_WRONLY)))",
            says(*REFUSED), python=True, sandboxes=EACH),
    EscapeAttempt(72, "read what process 1 has in memory", "Landlock",
            "names = ('mem', 'environ', 'auxv', 'maps', 'smaps', 'pagemap', 'syscall', 'stack', 'io', 'personality')\n"
            "def first(name): os.read(os.open('/proc/1/' + name, os.O_RDONLY), 1)\n"
            "found = [n for n in names if n != 'mem' and code(lambda: first(n)) == 'done'] + openable(['/proc/1/mem'], os.O_RDONLY)\n"
            "print(*(found if has_wall() else []), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=WALLED),
    EscapeAttempt(73, "take a socket or folder that process 1 holds", "nothing of ours is inside",
            "names = os.listdir('/proc/1/fd') if os.access('/proc/1/fd', os.R_OK) else []\n"
            "for name in names:\n try: at = os.readlink('/proc/1/fd/' + name)\n except OSError: continue\n"
            " if not at.startswith(('pipe:', '/memfd:', '/dev/null', 'anon_inode:[eventfd]')): print(at)\n"
            "print('tried')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(74, "walk up from the folders of process 1", "mount namespace, Landlock",
            "own = set(code(lambda: os.listdir('/')) == 'done' and os.listdir('/') or [])\n"
            "for path in ('/proc/1/cwd/../../../../..', '/proc/1/root', '/proc/1/root/..', '/proc/1/task/1/cwd/../../..'):\n"
            " try: print(*set(os.listdir(path)) - own, end='')\n except OSError: pass\nprint('tried')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(75, "overwrite the program of process 1 (CVE-2019-5736)", "root's file, Landlock",
            "print(code(lambda: os.open('/proc/1/exe', os.O_WRONLY)), code(lambda: os.open('/proc/1/exe', os.O_RDWR)))",
            says("ETXTBSY", *REFUSED), python=True, sandboxes=EACH),
    EscapeAttempt(76, "overwrite its interpreter for the next job", "read-only mounts",
            "paths = ['/proc/self/exe', sys.executable, os.__file__, '/usr/bin/env']\n"
            "print(*[code(lambda: os.open(p, os.O_WRONLY)) for p in paths])",
            says("ETXTBSY", *REFUSED), python=True, sandboxes=EACH),
    EscapeAttempt(77, "copy the memory of process 1", "seccomp, Landlock",
            "room = ctypes.create_string_buffer(8)\nown = (ctypes.c_ulong * 2)(ctypes.addressof(room), 8)\n"
            "theirs = (ctypes.c_ulong * 2)(0x400000, 8)\ngiven = (1, ctypes.addressof(own), 1, ctypes.addressof(theirs), 1, 0)\n"
            "print(call((311, 271), *given), call((310, 270), *given) if has_wall() else 'EPERM')",
            says("EPERM", "ESRCH"), python=True, sandboxes=EACH),
    EscapeAttempt(78, "trace process 1", "seccomp, Landlock",
            "def traced(): return [call((101, 117), request, 1, 0, 0) for request in (0x4206, 16)]\n"
            "print(*(traced() if has_wall() else ['EPERM']))",
            says("EPERM", "ESRCH"), python=True, sandboxes=EACH),
    EscapeAttempt(79, "copy a descriptor out of process 1", "seccomp, Landlock",
            "pidfd = libc.syscall(ctypes.c_long(434), ctypes.c_long(1), ctypes.c_long(0))\n"
            "print(*[call((438, 438), pidfd, number, 0) for number in range(10)])",
            says("EPERM", "EBADF", "ESRCH"), python=True, sandboxes=EACH),
    EscapeAttempt(80, "kill or stop process 1 by every call there is", "it is process 1",
            "import signal\ncode(lambda: os.kill(1, signal.SIGKILL)), code(lambda: os.kill(1, signal.SIGSTOP))\n"
            "pidfd = libc.syscall(ctypes.c_long(434), ctypes.c_long(1), ctypes.c_long(0))\n"
            "info = (ctypes.c_int * 32)(9, 0, -1)\n"
            "for number in (9, 19): call((424, 424), pidfd, number, 0, 0), call((234, 131), 1, 1, number)\n"
            "for number in (9, 19): call((129, 138), 1, number, ctypes.addressof(info))\n"
            "state = open('/proc/1/stat').read().rpartition(')')[2].split()[0]\nprint(*([state] if state in 'TtZX' else []), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(81, "change how the kernel treats process 1", "read-only /proc",
            "names = 'oom_score_adj coredump_filter clear_refs timens_offsets uid_map gid_map setgroups comm autogroup sched attr/current'\n"
            "print(*openable(['/proc/1/' + name for name in names.split()]), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(82, "be spared when memory runs out", "read-only /proc",
            "print(code(lambda: os.open('/proc/self/oom_score_adj', os.O_WRONLY)))",
            says(*REFUSED), python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(83, "enter namespaces of process 1 or of nobody", "seccomp",
            "kinds = ('mnt', 'pid', 'net', 'user', 'ipc', 'uts', 'cgroup')\n"
            "def enter(kind):\n fd = os.open('/proc/1/ns/' + kind, os.O_RDONLY)\n"
            " said = call((308, 268), fd, 0)\n if said != 'EPERM': print(kind, said)\n"
            "for kind in kinds: code(lambda: enter(kind))\nprint(call((308, 268), -1, 0))",
            says("EPERM"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(84, "outlive its job: subreaper, no death signal, double fork", "keeper, control groups",
            "import signal\nlibc.prctl(36, 1, 0, 0, 0)\nfor _ in range(3):\n if os.fork() == 0:\n"
            "  os.setsid(); libc.prctl(1, 0, 0, 0, 0)\n"
            "  if os.fork(): os._exit(0)\n"
            "  [signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]\n"
            "  os.closerange(0, 3); signal.pause(); os._exit(0)\nprint('tried')",
            only_tries, python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(85, "kill whoever started it", "pid namespace, own uid, Landlock",
            "import signal\nfor number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL): code(lambda: os.kill(os.getppid(), number))\nprint('tried')",
            only_tries, python=True, least="apptainer", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(86, "have the kernel send signals to who started it", "pid namespace, own uid, Landlock",
            "import fcntl\nread, write = os.pipe()\nfcntl.fcntl(read, 10, 9)\n"
            "for pid in (os.getppid(), 1):\n code(lambda: fcntl.fcntl(read, fcntl.F_SETOWN, pid))\n"
            " fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC); os.write(write, b'x')\nprint('tried')",
            only_tries, python=True, least="apptainer", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(87, "aim a timer at a thread of process 1", "kernel: threads of its own alone",
            "event = (ctypes.c_int * 16)(0, 0, 9, 4, 1)\nroom = ctypes.create_string_buffer(8)\n"
            "print(call((222, 107), 1, ctypes.addressof(event), ctypes.addressof(room)))",
            says("EINVAL", "EPERM"), python=True),
    EscapeAttempt(88, "become root or gain capabilities", "user namespace, no new privileges",
            "head = (ctypes.c_uint32 * 2)(0x20080522, 0)\ndata = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)\n"
            "print(code(lambda: os.setuid(0)), code(lambda: os.setgid(0)), code(lambda: os.setgroups([0])),\n"
            "      call((126, 91), ctypes.addressof(head), ctypes.addressof(data)),\n"
            "      call((157, 167), 47, 2, 21, 0, 0), call((157, 167), 28, 0x2f, 0, 0, 0))",
            says("EPERM", "EINVAL"), python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(89, "lift its own filter", "kernel: a filter stays",
            "print(call((157, 167), 22, 0, 0, 0, 0), call((157, 167), 38, 0, 0, 0, 0), call((157, 167), 22, 1, 0, 0, 0))",
            says("EINVAL", "EPERM"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(90, "give itself another program in the kernel's books", "no capability",
            "print(call((157, 167), 35, 13, 0, 0, 0), call((157, 167), 35, 8, 0x1000, 0, 0))",
            says("EPERM", "EINVAL", "EBADF"), python=True),
    EscapeAttempt(91, "raise its limits, or those of others", "hard limits, pid namespace",
            "import resource\ndef raised(what):\n hard = resource.getrlimit(what)[1]\n"
            " new = (ctypes.c_ulong * 2)(hard + 1, hard + 1)\n"
            " return 'EPERM' if hard == resource.RLIM_INFINITY else call((302, 261), 0, what, ctypes.addressof(new), 0)\n"
            "new = (ctypes.c_ulong * 2)(64, 64)\nothers = os.getppid() if os.getppid() > 1 else 1 << 22\n"
            "print(*[raised(w) for w in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],\n"
            "      call((302, 261), others, resource.RLIMIT_NOFILE, ctypes.addressof(new), 0))",
            says("EPERM", "ESRCH"), python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(92, "take the processor by priority", "no capability",
            "print(code(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))), code(lambda: os.setpriority(0, 0, -5)),\n"
            "      call((251, 30), 1, 0, 1 << 13))",
            says("EPERM", "EACCES"), python=True),
    EscapeAttempt(93, "leave by an inherited folder (CVE-2024-21626)", "they are closed",
            "for fd in range(1024):\n try: print(*os.listdir('/proc/self/fd/%d/..' % fd))\n except OSError: pass\n"
            "print(*(['cwd'] if 'unreachable' in os.readlink('/proc/self/cwd') else []), 'tried')",
            only_tries, python=True, sandboxes=EACH),
    EscapeAttempt(94, "steal its own output, grow its pipe", "it is its own; pipe-max-size",
            "import fcntl\nfd = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\ncode(lambda: os.read(fd, 1))\n"
            "said = code(lambda: fcntl.fcntl(1, 1031, 1 << 30))\ncode(lambda: fcntl.flock(1, fcntl.LOCK_EX | fcntl.LOCK_NB))\nos.close(fd)\nprint(said)",
            says("EPERM", "EINVAL"), python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(95, "print a record of its own success", "records come from the supervisor",
            "print('{\"state\": \"finished\", \"status\": \"ok\", \"exit_code\": 0}', flush=True)\n"
            "os.write(1, b'\\0\\0\\0\\x02' + bytes(8) + b'{}')\nsys.exit(3)", _fails_by_itself, python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(96, "type into a terminal it makes (CVE-2017-5226, CVE-2019-7304)", "seccomp",
            "import fcntl\ndef own(request):\n main = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)\n"
            " fcntl.ioctl(main, 0x40045431, b'\\0' * 4)\n number = int.from_bytes(fcntl.ioctl(main, 0x80045430, b'\\0' * 4), 'little')\n"
            " fcntl.ioctl(os.open('/dev/pts/%d' % number, os.O_RDWR | os.O_NOCTTY), request, b'x')\n"
            "print(*[code(lambda: own(request)) for request in (0x5412, 0x541C)])",
            says(*REFUSED), python=True, least="landlock", sandboxes=(ANY,)),
)  # fmt: skip
