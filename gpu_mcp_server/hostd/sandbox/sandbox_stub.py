"""Waits inside a sandbox that was made ahead of its job: it takes one command and limits, and execs.

Before anything else it enters a Landlock domain that withholds nothing of files, so that neither it nor what it
becomes can trace process 1, open its memory or, from version 6 on, signal it. Version 1 is left out, as it forbids
renaming between folders. Source: Documentation/userspace-api/landlock.rst, "Ptrace restrictions", "IPC scoping".

A sandbox that is made for a program instead calls its `prepare` ahead and its `main` with the job's arguments.
Only its source travels, as an argument; it must not import anything of ours. `signal`, `socket` and `json` are left
out: most commands start behind this, and enumerations and regular expressions would take as long as all the rest.
"""

FORMAT = 2
"""Of the command, by `marshal`: hostd's own Python may be another than the one inside, and all read this."""

WALL = """
import _signal, os, sys
import warnings  # os.execvpe imports it
def wait_for_filter():
    # bubblewrap starts this and process 1 at once, and gives that one its filter last
    with open("/proc/1/comm", "rb") as name:
        if name.read().strip() != b"bwrap":
            return
    while True:
        with open("/proc/1/status", "rb") as status:
            if b"Seccomp:\\t2" in status.read():
                break
def wall():
    import ctypes, struct
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    version = call(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 2:
        return
    refer, signals = 1 << 13, 2
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rights = struct.pack("=QQQ", refer, 0, signals)[:size]
    rules = call(ctypes.c_long(444), ctypes.c_char_p(rights), ctypes.c_size_t(size), ctypes.c_uint32(0))
    top = os.open("/", os.O_PATH | os.O_CLOEXEC)
    beneath = ctypes.c_char_p(struct.pack("=Qi", refer, top))
    call(ctypes.c_long(445), ctypes.c_int(rules), ctypes.c_int(1), beneath, ctypes.c_uint32(0))
    call(ctypes.c_long(446), ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(top)
    os.close(rules)
try:
    wait_for_filter()
    wall()
except (ImportError, OSError):
    pass
def use_plain_signals():
    for number in set(range(1, 32)) - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)
def become(argv, env):
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, ("cannot start %s: %s\\n" % (argv[0], error.strerror)).encode("utf-8", "replace"))
        os._exit(127)
"""
WALLED = (
    WALL
    + """
use_plain_signals()
become(sys.argv[1:], os.environ)
"""
)
"""What a process starts behind that may write to /proc, or trace its own children: it would reach process 1 as well."""

SOURCE = (
    WALL
    + """
import _socket, array, marshal, resource
link = _socket.socket(fileno=int(sys.argv[1]))
os.set_inheritable(link.fileno(), False)
program = {"__name__": "program"}
if len(sys.argv) > 2:
    exec(compile(sys.argv[2], "program", "exec"), program)
    try:
        program["prepare"]()
    except Exception:
        pass  # main meets the same and says so where it is heard
use_plain_signals()
link.send(b"ready")
message, ancillary, flags, address = link.recvmsg(8, _socket.CMSG_SPACE(256), _socket.MSG_CMSG_CLOEXEC)
if not ancillary:
    sys.exit(0)
command, stdin, *ends = array.array("i", ancillary[0][2])
with open(command, "rb") as text:
    job = marshal.loads(text.read())
os.dup2(stdin, 0)
for what, soft, hard in job["rlimits"]:
    resource.setrlimit(what, (soft, hard))
if "main" in program:
    os.close(stdin)
    link.close()
    os.environ.clear()
    os.environ.update(job["env"])
    os.environ.update((name, str(end)) for name, end in zip(job["links"], ends))
    program["main"](job["argv"][1:])
    sys.exit(0)
become(job["argv"], job["env"])
"""
)
"""After the exec only 0, 1 and 2 are open: all else is closed on exec. A program finds its links in its environment."""
