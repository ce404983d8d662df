"""What waits inside a sandbox that was made ahead of its job: it takes one command and limits, and execs.

A sandbox that is made for a program instead calls its `prepare` ahead and its `main` with the job's arguments.
Only its source travels, as an argument; it must not import anything of ours.
"""

SOURCE = """
import array, json, os, resource, signal, socket, sys
import warnings  # os.execvpe imports it
link = socket.socket(fileno=int(sys.argv[1]))
os.set_inheritable(link.fileno(), False)
program = {"__name__": "program"}
if len(sys.argv) > 2:
    exec(compile(sys.argv[2], "program", "exec"), program)
    try:
        program["prepare"]()
    except Exception:
        pass  # main meets the same and says so where it is heard
for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
link.send(b"ready")
message, ancillary, flags, address = link.recvmsg(8, socket.CMSG_SPACE(256), socket.MSG_CMSG_CLOEXEC)
if not ancillary:
    sys.exit(0)
command, stdin, *ends = array.array("i", ancillary[0][2])
with open(command, "rb") as text:
    job = json.loads(text.read())
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
try:
    os.execvpe(job["argv"][0], job["argv"], job["env"])
except OSError as error:
    os.write(2, ("cannot start %s: %s\\n" % (job["argv"][0], error.strerror)).encode("utf-8", "replace"))
    os._exit(127)
"""
"""After the exec only 0, 1 and 2 are open: all else is closed on exec. A program finds its links in its environment."""
