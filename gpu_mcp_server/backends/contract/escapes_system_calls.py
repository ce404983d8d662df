"""Ways around the system call filter, each tried from inside: other entries of the kernel, other words for a call.

Of the same form as `escapes.ATTEMPTS`. What is tried is public: bypasses of other filters, and calls that reached deep
into kernels. An answer that the filter did not give, another error number among them, counts as open.
"""

from collections.abc import Callable

from gpu_mcp_server.backends.contract.attempt import EscapeAttempt
from gpu_mcp_server.backends.contract.host import JobSnapshot


def _answers(*words: str) -> Callable[[JobSnapshot], bool]:
    return lambda done: done.record.status == "ok" and done.text.split() == list(words)


def _each(word: str, count: int) -> Callable[[JobSnapshot], bool]:
    return _answers(*[word] * count)


_CODE_OF_32_BITS = """
import mmap, struct
def end_of(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    return errno.errorcode.get(os.WEXITSTATUS(status), 'done')
def interrupt():  # mov eax, 20 (getpid of i386); int 0x80; ret
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex('b814000000cd80c3'))
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
def program():  # exit(0) of i386, of ARM
    code = bytes.fromhex(('b80100000031dbcd80', '0000a0e30170a0e3000000ef')[here])
    about = (2, (3, 40)[here], 1, 0x10054, 52, 0, (0, 5 << 24)[here], 52, 32, 1, 0, 0, 0)
    head = struct.pack('<16sHHIIIIIHHHHHH', b'\\x7fELF\\1\\1\\1', *about)
    fd = os.memfd_create('elf')
    os.write(fd, head + struct.pack('<8I', 1, 0, 0x10000, 0x10000, 84 + len(code), 84 + len(code), 5, 4096) + code)
    os.execve(fd, ['elf'], {})
print(*[end_of(work) for work in ((interrupt, program), (program,))[here]])
"""
_CLONE3 = """
given = (ctypes.c_ulonglong * 8)(0x10000000, 0, 0, 0, 17)
print(call((435, 435), ctypes.addressof(given), 64))
"""
_NAMESPACES = """
for bit in (17, 25, 26, 27, 28, 29, 30):
    print(call((56, 220), 1 << bit | 17, 0, 0, 0, 0), call((56, 220), 1 << bit | 17 | 1 << 40, 0, 0, 0, 0))
"""
_TERMINAL = """
for request in (0x5412, 0x5412 | 1 << 32, 0x5412 | 0xFFFFFFFF << 32, 0x541C, 0x541C | 1 << 63):
    print(call((16, 29), 0, ctypes.c_long(request).value, 0))
"""
_SOCKETS = """
pair = (ctypes.c_int * 2)()
for family in (12, 17, 38, 40, 38 | 1 << 32):
    print(call((41, 198), family, 5, 0), call((53, 199), family, 1, 0, ctypes.addressof(pair)))
"""
_TRACED = """
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, call((101, 117), 0, 0, 0, 0).encode())
    os._exit(0)
print(os.read(read, 99).decode(), call((101, 117), 16, os.getppid(), 0, 0), call((101, 117), 0x4206, 1, 0, 0x200000))
"""
_OWN_SUPERVISOR = """
import select, struct, threading
keyctl, listener, said = ((250, 219)[here]), [], []
code_of = [(0x20, 0, 0, 0), (0x15, 0, 1, keyctl), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
code = b''.join(struct.pack('=HBBI', *i) for i in code_of)
kept = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack('@HQ', len(code_of), ctypes.addressof(kept)))
ready = threading.Event()
def job():
    libc.prctl(38, 1, 0, 0, 0)
    listener.append(libc.syscall(ctypes.c_long((317, 277)[here]), 1, ctypes.c_long(8), program))
    ready.set()
    said.append(call((keyctl, keyctl), 0, -3, 0, 0, 0))
thread = threading.Thread(target=job)
thread.start()
ready.wait()
while thread.is_alive() and listener[0] >= 0:
    if select.select([listener[0]], [], [], 0.1)[0]:
        asked = ctypes.create_string_buffer(80)
        libc.ioctl(listener[0], ctypes.c_ulong(0xC0502100), asked)
        answer = ctypes.create_string_buffer(asked.raw[:8] + struct.pack('@qiI', 0, 0, 1), 24)
        libc.ioctl(listener[0], ctypes.c_ulong(0xC0182101), answer)
print('listens' if listener[0] >= 0 else 'deaf', *said)
"""
_LENIENT_FILTER = """
import struct
kept = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0x7FFF0000), 8)
program = ctypes.create_string_buffer(struct.pack('@HQ', 1, ctypes.addressof(kept)))
libc.prctl(38, 1, 0, 0, 0)
print(call((317, 277), 1, 0, ctypes.addressof(program)), call((250, 219), 0, -3, 0, 0, 0))
"""
_OWN_PROGRAM = """
fd = os.memfd_create('cat')
os.write(fd, open('/bin/grep', 'rb').read())
sys.stdout.flush()
os.execve(fd, ['grep', '-E', '^(Seccomp|NoNewPrivs):', '/proc/self/status'], {})
"""
ATTEMPTS: tuple[EscapeAttempt, ...] = (
    EscapeAttempt(136, "enter the kernel as 32-bit code", "seccomp: another architecture is killed", _CODE_OF_32_BITS,
            lambda done: set(done.text.split()) <= {"31", "11", "ENOEXEC"} and done.record.status == "ok", python=True),
    EscapeAttempt(137, "hide a user namespace in clone3's memory", "seccomp: clone3 is unknown", _CLONE3,
            _answers("ENOSYS"), python=True),
    EscapeAttempt(138, "make namespaces by clone, each of seven", "seccomp: flags", _NAMESPACES,
            _each("EPERM", 14), python=True),
    EscapeAttempt(139, "type into a terminal, with bits above the request", "seccomp: low word", _TERMINAL,
            _each("EPERM", 5), python=True),
    EscapeAttempt(140, "call through io_uring", "seccomp",
            "for n in (425, 426, 427): print(call((n, n), 8, 0, 0, 0, 0))", _each("EPERM", 3), python=True),
    EscapeAttempt(141, "open packet, crypto and VM sockets, by pairs too", "seccomp: families", _SOCKETS,
            _each("EAFNOSUPPORT", 10), python=True),
    EscapeAttempt(142, "change calls of a traced process", "seccomp: no ptrace", _TRACED, _each("EPERM", 3), python=True),
    EscapeAttempt(143, "let denied calls go on by a supervisor of one's own", "seccomp: the strictest answer counts",
            _OWN_SUPERVISOR, _answers("listens", "EPERM"), python=True),
    EscapeAttempt(144, "load a filter that allows everything", "seccomp: the strictest answer counts", _LENIENT_FILTER,
            _answers("done", "EPERM"), python=True),
    EscapeAttempt(145, "enter a namespace by its file", "seccomp",
            "for n in ('user', 'mnt'): print(call((308, 268), os.open('/proc/self/ns/' + n, os.O_RDONLY), 0))",
            _each("EPERM", 2), python=True),
    EscapeAttempt(146, "stop the kernel at a fault of memory", "seccomp",
            "print(call((323, 282), 1), 'open' if os.access('/dev/userfaultfd', os.W_OK) else 'shut')",
            _answers("EPERM", "shut"), python=True),
    EscapeAttempt(147, "make all memory executable, map page zero", "seccomp: personality",
            "for p in (1 << 22, 1 << 20, 1 << 22 | 1 << 18, 1 << 22 | 1 << 40, 8): print(call((135, 92), p))",
            _each("EPERM", 5), python=True),
    EscapeAttempt(148, "keep secrets in the kernel's key rings", "seccomp",
            "for n in ((248, 217), (249, 218), (250, 219)): print(call(n, 0, 0, 0, 0, -3))",
            _each("EPERM", 3), python=True),
    EscapeAttempt(149, "open a file by its handle", "seccomp",
            "for n in ((303, 264), (304, 265)): print(call(n, -100, 0, 0, 0, 0))", _each("EPERM", 2), python=True),
    EscapeAttempt(150, "mount by the newer calls", "seccomp",
            "for n in (428, 429, 430, 431, 432, 433, 442, 467): print(call((n, n), -1, 0, 0, 0, 0))",
            _each("EPERM", 8), python=True),
    EscapeAttempt(151, "reach into another process: memory, descriptors, hints", "seccomp",
            "for n in ((310, 270), (311, 271), (438, 438), (440, 440), (312, 272)): print(call(n, 1, 0, 0, 0, 0))",
            _each("EPERM", 5), python=True),
    EscapeAttempt(152, "call what the filter does not know", "seccomp: unknown numbers",
            "for n in (340, 468, 469, 470, 499, 600, 0xFFFF, -1): print(call((n, n), -1, -1, -1, -1))",
            _each("ENOSYS", 8), python=True),
    EscapeAttempt(153, "lose the filter by running a program from memory", "seccomp: it is inherited", _OWN_PROGRAM,
            _answers("NoNewPrivs:", "1", "Seccomp:", "2"), python=True),
)  # fmt: skip
