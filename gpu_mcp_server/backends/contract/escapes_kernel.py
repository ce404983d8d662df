"""Ways out through the kernel's interfaces and through files, and ways to take what others need, each tried from inside.

Models: CVE-2016-5195 and CVE-2022-0847 (pages of read-only files), CVE-2022-0492 (release_agent), CVE-2019-12439 and
CVE-2020-5291 (bubblewrap), CVE-2025-31133 and CVE-2025-52565 (runc's masked paths and console), and the man pages of
what is called. A program that reaches something names it.
"""

import signal

from gpu_mcp_server.backends.contract.attempt import (
    COLD_AND_PREWARMED,
    EACH,
    MIB,
    REFUSED,
    EscapeAttempt,
    JobSnapshot,
    ends_as,
    only_tries,
    says,
)


def _ends_or_is_denied(done: JobSnapshot) -> bool:
    return done.record.status == "oom" or (done.record.status == "ok" and done.text.split() == ["EPERM"])


def _unknown_or_killed(done: JobSnapshot) -> bool:
    """Say whether the filter answered, or one around it killed the process first, as that of Docker's engine does."""
    leader = done.record.leader
    return says("ENOSYS")(done) or bool(leader and leader.signal == signal.SIGSYS)


ATTEMPTS: tuple[EscapeAttempt, ...] = (
    EscapeAttempt(97, "call by the 32-bit door", "seccomp: a foreign architecture is killed",
            "import mmap\nif os.uname().machine == 'x86_64':\n code32 = bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3])\n"
            " room = mmap.mmap(-1, 4096, prot=7)\n room.write(code32)\n at = ctypes.addressof(ctypes.c_char.from_buffer(room))\n"
            " pid = os.fork()\n if pid == 0: ctypes.CFUNCTYPE(ctypes.c_int)(at)(); os._exit(0)\n"
            " print(*(['came back'] if os.WIFEXITED(os.waitpid(pid, 0)[1]) else []))\nprint('tried')",
            lambda d: d.record.status == "ok" and d.text.split() == ["tried"], python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(98, "call by the x32 numbers", "seccomp",
            "print(*[call((0x40000000 | n, 5000 + n), 0, 0, 0, 0, 0) for n in (39, 101, 272, 521)])",
            _unknown_or_killed, python=True, least="landlock"),
    EscapeAttempt(99, "make any other namespace", "no capability, seccomp",
            "flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x10000000, 0x30020000)\n"
            "def cloned(flag):\n said = call((56, 220), flag | 17, 0, 0, 0, 0)\n"
            " if said == 'done' and os.getpid() != mine: os._exit(0)\n return said\nmine = os.getpid()\n"
            "print(*[cloned(flag) for flag in flags], call((435, 435), 0, 88), *[call((272, 97), flag) for flag in flags])",
            says("EPERM", "ENOSYS", "EINVAL"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(100, "mount, spread mounts, clone trees", "seccomp, no capability",
            "path = ctypes.addressof(ctypes.create_string_buffer(b'/'))\nshared, bind, remount = 1 << 20, 4096, 4096 | 32\n"
            "print(*[call((165, 40), path, path, 0, flags, 0) for flags in (shared, bind, remount)],\n"
            "      call((428, 428), -100, path, 1), call((467, 467), -100, path, 1, 0, 0), call((429, 429), -100, path, -100, path, 0),\n"
            "      call((442, 442), -100, path, 0, 0, 0), call((430, 430), path, 0), call((166, 39), path, 2))",
            says("EPERM", "ENOSYS"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(101, "change its root and climb", "no capability",
            "print(code(lambda: os.chroot('.')), code(lambda: os.chroot('/tmp')))", says("EPERM", "ENOENT", "EACCES"),
            python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(102, "climb from the workspace", "mount namespace, Landlock",
            "here = os.open('.', os.O_RDONLY)\nhidden = {'home', 'root', 'var', 'srv', 'mnt', 'opt', 'boot', 'run', 'work', 'state', 'blobs'}\n"
            "for path in ('..', '../..', '../../..', '../../../../../../..'):\n"
            " try: print(*hidden & set(os.listdir(os.open(path, os.O_RDONLY, dir_fd=here))), end='')\n except OSError: pass\n"
            "print('tried')",
            only_tries, python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(103, "put something in the workspace's place", "a mount point; Landlock",
            "at = os.getcwd()\ndef moved(): os.rename(at, at + '2'), os.rename(at + '2', at)\nprint(code(moved), code(lambda: os.rmdir(at)), code(lambda: os.symlink('/', at + '3')))",
            says("EBUSY", "ENOTEMPTY", *REFUSED), python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(104, "link files from outside into the workspace", "other mounts; Landlock",
            "print(*[code(lambda: os.link(p, 'x')) for p in ('/usr/bin/env', '/etc/ld.so.cache', '/proc/self/exe')])",
            says(*REFUSED), python=True, least="landlock", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(105, "write a read-only file by a pipe (CVE-2022-0847)", "kernel 5.16.11 or later",
            "fd = os.open('/usr/bin/env', os.O_RDONLY)\nbefore = os.pread(fd, 16, 0)\nread, write = os.pipe()\n"
            "os.write(write, bytes(65536)), os.read(read, 65536)\ncall((275, 76), fd, 0, write, 0, 1, 0)\nos.write(write, b'changed')\n"
            "print(*([] if os.pread(fd, 16, 0) == before else ['changed']), 'tried')",
            only_tries, python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(106, "write a read-only file by its own memory (CVE-2016-5195)", "kernel, read-only /proc",
            "import mmap\nfd = os.open('/usr/bin/env', os.O_RDONLY)\nroom = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)\n"
            "at = ctypes.addressof(ctypes.c_char.from_buffer(room))\nbefore = os.pread(fd, 16, 0)\n"
            "def poke():\n memory = os.open('/proc/self/mem', os.O_RDWR)\n"
            " for _ in range(200): call((28, 233), at, 4096, 4); os.pwrite(memory, b'changed', at)\n"
            "code(poke)\nprint(code(lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)) if os.pread(fd, 16, 0) == before else 'changed')",
            says("EACCES", "EPERM"), python=True, sandboxes=EACH),
    EscapeAttempt(107, "watch which programs the host starts", "seccomp",
            "print(call((294, 26), 0), call((253, 26), 0), call((254, 27), 0, 0, 0), call((300, 262), 0, 0))",
            says("EPERM", "ENOSYS"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(108, "hold up others who open a file, by a lease", "a file of root's",
            "import fcntl\nprint(*[code(lambda: fcntl.fcntl(os.open('/usr/bin/env', os.O_RDONLY), 1024, kind)) for kind in (0, 1)])",
            says("EACCES", "EPERM", "EAGAIN"), python=True),
    EscapeAttempt(109, "read or add keys of the kernel's key rings", "seccomp, user namespace",
            "kind, name = (ctypes.addressof(ctypes.create_string_buffer(word)) for word in (b'user', b'x'))\n"
            "print(call((248, 217), kind, name, name, 1, -3), call((249, 218), kind, name, 0, -3), call((250, 219), 0, -3, 1))",
            says("EPERM"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(110, "read the kernel's memory and messages", "device nodes and modes",
            "paths = '/proc/kcore /proc/kmsg /proc/vmallocinfo /proc/slabinfo /proc/timer_list /proc/kpageflags /dev/core /dev/mem /dev/kmem '\n"
            "paths += '/dev/port /dev/kmsg /dev/userfaultfd /dev/fuse /dev/kvm /dev/vda /dev/sda /dev/loop-control /dev/console /sys/kernel/debug/x'\n"
            "print(*openable(paths.split(), os.O_RDONLY), call((103, 116), 3, 0, 0))",
            says("EPERM"), python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(111, "write any file below /proc/sys", "read-only mount, Landlock",
            "found = [os.path.join(at, name) for at, _, names in os.walk('/proc/sys') for name in names]\n"
            "print(*openable(found), 'tried' if found else 'nothing there')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(112, "write a masked path (CVE-2025-31133)", "read-only /proc, own uid",
            "paths = ['/proc/' + n for n in 'sysrq-trigger irq/default_smp_affinity bus/pci mtrr latency_stats scsi/scsi kcore fs/nfsd'.split()]\n"
            "print(*openable(paths), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(113, "have the kernel call a program of its own (CVE-2022-0492)", "no cgroups inside; Landlock",
            "import glob\npaths = ['/sys/kernel/uevent_helper', '/sys/power/state', '/sys/fs/cgroup/release_agent']\n"
            "paths += glob.glob('/sys/fs/cgroup/*/release_agent') + glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True)[:500]\n"
            "print(*openable(paths), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(114, "make POSIX message queues", "RLIMIT_MSGQUEUE",
            "name = ctypes.addressof(ctypes.create_string_buffer(b'left'))\nprint(call((240, 180), name, 0o102, 0o600, 0))",
            says("EMFILE", "EPERM", "EACCES", "ENOSYS"), python=True),
    EscapeAttempt(115, "leave shared memory to the next job", "IPC namespace, seccomp",
            "key = 0x67707511\nleft = libc.shmget(key, 0, 0)\n"
            "if left >= 0: libc.shmctl(left, 0, 0), libc.msgctl(libc.msgget(key, 0), 0, 0), libc.semctl(libc.semget(key, 0, 0), 0, 0)\n"
            "else: libc.shmget(key, 4096, 0o1666), libc.msgget(key, 0o1666), libc.semget(key, 1, 0o1666)\n"
            "print(*(['found'] if left >= 0 else []), 'tried')",
            only_tries, python=True, least="landlock", sandboxes=(*EACH, *COLD_AND_PREWARMED)),
    EscapeAttempt(116, "find shared memory of others", "tmpfs of its own, Landlock",
            "try: print(*os.listdir('/dev/shm'))\nexcept OSError: print()\nprint('tried')",
            lambda d: d.record.status == "ok" and d.text.split() == ["tried"], python=True, least="landlock", sandboxes=EACH),
    EscapeAttempt(117, "connect to every socket that /proc/net/unix lists", "network namespace",
            "names = {line.split()[7] for line in open('/proc/net/unix') if len(line.split()) > 7}\n"
            "for name in names:\n for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):\n"
            "  def tried():\n   with socket.socket(socket.AF_UNIX, kind) as s: s.connect(name.replace('@', '\\0', 1) if name[0] == '@' else name)\n"
            "  if code(tried) == 'done': print(name)\nprint('tried')",
            only_tries, python=True, least="apptainer", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(118, "have a pair of sockets connect again", "network namespace, seccomp",
            "def again():\n one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n one.connect('/run/systemd/journal/socket')\n"
            "print(code(again))",
            says(*REFUSED), python=True, least="apptainer", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(119, "ask the network's tables", "network namespace",
            "names = [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]\n"
            "print(*[n for n in names if n not in ('lo', 'sit0', 'tunl0', 'ip6tnl0', 'gre0', 'gretap0', 'erspan0', 'ip_vti0', 'ip6_vti0', 'ip6gre0')], 'tried')",
            only_tries, python=True, least="apptainer", sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(120, "change modes, times or attributes outside", "read-only mounts, root's files",
            "paths = ('/usr/bin/env', '/usr', '/dev/null')\n"
            "print(*[code(lambda: os.chmod(p, 0o777)) for p in paths], *[code(lambda: os.utime(p, (0, 0))) for p in paths],\n"
            "      *[code(lambda: os.setxattr(p, 'user.x', b'x')) for p in paths], *[code(lambda: os.chown(p, os.getuid(), -1)) for p in paths])",
            says("ENOTSUP", "EOPNOTSUPP", *REFUSED), python=True),
    EscapeAttempt(121, "make a node of the workspace's own disk", "no capability",
            "dev = os.stat('.').st_dev\nprint(code(lambda: os.mknod('disk', 0o60600, dev)), code(lambda: os.mknod('/dev/shm/disk', 0o60600, dev)))",
            says(*REFUSED), python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(122, "run a set-uid program as its owner", "no new privileges, nosuid",
            "import stat, subprocess\nnames = ('su', 'mount', 'passwd', 'newgrp', 'umount', 'chsh')\n"
            "def is_set_uid(p): return os.path.exists(p) and os.stat(p).st_mode & stat.S_ISUID\n"
            "for path in filter(is_set_uid, ('/usr/bin/' + name for name in names)):\n"
            " child = subprocess.Popen([path, '--help'], stdout=-3, stderr=-3, stdin=-3)\n"
            " try: print(*[path] if open('/proc/%d/status' % child.pid).read().split('Uid:')[1].split()[1] == '0' else [])\n"
            " except OSError: pass\n child.kill(), child.wait()\nprint('tried')",
            lambda d: d.record.status == "ok" and d.text.split() == ["tried"], python=True, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(123, "take memory in files without a name", "control group",
            "import time\nkeep = [os.memfd_create('m%d' % i) for i in range(4)]\nblock = bytes(4 << 20)\n"
            "for fd in keep:\n for _ in range(16): os.write(fd, block)\ntime.sleep(2); print('took')",
            ends_as("oom"), python=True, least="full", limits={"memory_bytes": 128 * MIB}, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(124, "take memory in shared memory that it detaches", "control group, seccomp",
            "import time\nlibc.shmat.restype = ctypes.c_void_p\nsaid, made = 'took', []\nfor _ in range(4):\n"
            " ctypes.set_errno(0)\n at = libc.shmget(0, 64 << 20, 0o1600)\n"
            " if at < 0: said = errno.errorcode[ctypes.get_errno()]; break\n"
            " made.append(at); room = libc.shmat(at, None, 0); ctypes.memset(room, 1, 64 << 20); libc.shmdt(ctypes.c_void_p(room))\n"
            "if said == 'took': time.sleep(2)\nfor at in made: libc.shmctl(at, 0, 0)\nprint(said)",
            _ends_or_is_denied, python=True, least="full", limits={"memory_bytes": 128 * MIB}, sandboxes=COLD_AND_PREWARMED),
    EscapeAttempt(125, "take memory in the buffers of sockets", "control group",
            "import time\nkeep, sent = [], 0\nwhile sent < 256 << 20 and len(keep) < 1500:\n"
            " pair = socket.socketpair(); pair[0].setblocking(False); pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30); keep.append(pair)\n"
            " try:\n  while sent < 256 << 20: sent += pair[0].send(bytes(65536))\n except BlockingIOError: pass\n"
            "time.sleep(2); print('took')",
            ends_as("oom"), python=True, least="full", limits={"memory_bytes": 128 * MIB}),
)  # fmt: skip
