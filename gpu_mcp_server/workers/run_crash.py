"""Runs a program that crashed or hung once more, and tells where each thread stood; nothing is judged or timed.

gdb sees native frames. Where there is none, or it may not trace, a handler of ours prints them, if it can be compiled.
Python's frames are faulthandler's, which the player sets up. The last line on stdout is JSON: what was seen, as text.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple

FRAMES = 16
"""Of each thread."""
MOST_CHARACTERS = 16000
QUIET_S = 10.0
"""For gdb or the handlers to write once a program was interrupted."""
GDB = (
    "set confirm off", "set pagination off", "set debuginfod enabled off", "set startup-with-shell off",
    "set auto-load off", "set width 0", "set print thread-events off", "handle SIGINT stop print pass",
)  # fmt: skip
HANDLER = """
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>
static const int known[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
static struct sigaction before[5];
static char stack[1 << 16];
static void told(int number) {
    void *frames[32];
    int count = backtrace(frames, 32);
    if (write(2, "native frames:\\n", 15) < 0) _exit(1);
    backtrace_symbols_fd(frames, count, 2);
    for (int i = 0; i < 5; i++) sigaction(known[i], &before[i], 0);
    raise(number);
}
void install(void) {
    void *one[1];
    backtrace(one, 1); /* loads what it needs now, not in a handler */
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&own, 0);
    struct sigaction action = {.sa_handler = told, .sa_flags = SA_ONSTACK};
    for (int i = 0; i < 5; i++) sigaction(known[i], &action, &before[i]);
}
"""
FRAME = re.compile(r"^(?P<path>/[^\s(]+)\((?P<name>[\w.]*)\+(?P<offset>0x[0-9a-f]+)\)")


def family(pid: int) -> List[int]:
    """Return a process and all below it, parents first."""
    found = [pid]
    for one in found:
        try:
            for task in os.listdir("/proc/%d/task" % one):
                with open("/proc/%d/task/%s/children" % (one, task)) as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found


def threads(pid: int) -> List[str]:
    """Return where the kernel says that each thread of a process stands; `unknown` where it does not say."""
    lines: List[str] = []
    for task in sorted(os.listdir("/proc/%d/task" % pid), key=int)[:64]:
        folder = "/proc/%d/task/%s/" % (pid, task)
        try:
            with open(folder + "stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
            with open(folder + "comm") as file:
                name = file.read().strip()
        except OSError:
            continue
        try:
            with open(folder + "wchan") as file:
                where = file.read().strip().replace("0", "unknown", 1) if state == "S" else "running"
        except OSError:
            where = "unknown"
        lines.append("thread %s (%s): state %s, in the kernel: %s" % (task, name, state, where or "unknown"))
    return lines


def run_until(
    command: List[str], limit_s: float, env: Dict[str, str], interrupt: bool
) -> Tuple[str, Optional[int], bool]:
    """Run a command; return what it wrote, how it ended, and whether its time was over.

    Args:
        command: What to run.
        limit_s: When what a debugger runs is interrupted, or its threads are looked at; then all is ended.
        env: Beside our own environment.
        interrupt: Whether a debugger waits for the interrupt.
    """
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=dict(os.environ, **env),
            start_new_session=True,
        )  # fmt: skip
        late, seen = False, ""
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
            if interrupt:
                os.kill(family(process.pid)[:2][-1], signal.SIGINT)
            else:
                seen = "\n".join(threads(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(QUIET_S if interrupt else 0.1)
        for pid in family(process.pid)[::-1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        code = process.wait()
        written.seek(0)
        text = written.read(1 << 20).decode("utf-8", "replace")
        return text + ("\n" + seen if seen else ""), code, late


def by_gdb(gdb: str, command: List[str], limit_s: float) -> Tuple[str, Optional[int], bool]:
    """Run a program under gdb; behind the native frames let it go on, so that Python's handler tells its own.

    One that hung ends there by the interrupt, which gdb passes on, unless it ignores it.
    """
    whole = [gdb, "-nx", "-batch", "-q"]
    for setting in GDB:
        whole += ["-iex", setting]
    # A second thread with the same fault would stop it again, before the handler has told anything.
    on = ("handle SIGSEGV SIGBUS SIGILL SIGFPE SIGABRT nostop noprint pass", "continue")
    for step in ("run", "thread apply all backtrace %d" % FRAMES, *on):
        whole += ["-ex", step]
    return run_until([*whole, "--args", *command], limit_s, {}, interrupt=True)


def handler(folder: str) -> str:
    """Compile the handler; return its path, empty where no compiler does."""
    source, library = os.path.join(folder, "handler.c"), os.path.join(folder, "handler.so")
    with open(source, "w") as file:
        file.write(HANDLER)
    for compiler in ("cc", "gcc", "clang"):
        path = shutil.which(compiler)
        if path and not subprocess.call([path, "-shared", "-fPIC", "-o", library, source]):
            return library
    return ""


def symbolize(text: str) -> str:
    """Return our handler's frames with file and line, where the library says them and addr2line is there.

    The first two are the handler's and the kernel's; the third stopped at its address, the others return to theirs.
    """
    lines: List[str] = []
    frames = 0
    for line in text.splitlines():
        frame = FRAME.match(line)
        if not frame:
            lines.append(line)
            continue
        frames += 1
        if frames > 2:
            lines += ["#%d %s" % (frames, each) for each in places(frame, returns=frames > 3)]
    return "\n".join(lines)


def places(frame: Any, returns: bool) -> List[str]:
    """Return where a frame stands, the innermost of what was inlined first."""
    path, name, at = frame.group("path"), frame.group("name"), int(frame.group("offset"), 16) - returns
    addr2line, nm = shutil.which("addr2line"), shutil.which("nm")
    if addr2line and (nm or not name):
        at += symbol(str(nm), path, name) if name else 0
        found = output([addr2line, "-Cfpie", path, hex(at)]).replace(" (inlined by) ", "").splitlines()
        if found and "?" not in found[0]:
            return found
    return ["%s from %s" % (name or "??", path)]


def symbol(nm: str, path: str, name: str) -> int:
    """Return a symbol's address in a library; 0 where it is not told."""
    for line in output([nm, "-D", path]).splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[2].partition("@")[0] == name:
            return int(parts[0], 16)
    return 0


def output(command: List[str]) -> str:
    """Return what a short program writes."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    return done.stdout.decode("utf-8", "replace")


def main(arguments: List[str]) -> None:
    """Run a plan: `command`, `limit_s`."""
    plan: Dict[str, Any] = json.loads(arguments[0])
    command, limit_s = list(plan["command"]), float(plan["limit_s"])
    gdb, how = shutil.which("gdb") if plan.get("gdb", True) else None, "gdb"
    begin = time.monotonic()
    text, code, late = by_gdb(gdb, command, limit_s) if gdb else ("", None, False)
    if not re.search(r"^#0 ", text, re.M) and not re.search(r"exited (normally|with code)", text):
        with tempfile.TemporaryDirectory() as folder:
            library = handler(folder)
            how = "a handler" if library else "no debugger and no compiler: native frames are unknown"
            left_s = max(2.0, limit_s - (time.monotonic() - begin)) if late else limit_s
            text, code, late = run_until(command, left_s, {"CRASH_HANDLER": library}, interrupt=False)
            text = symbolize(text)
    half = MOST_CHARACTERS // 2
    text = text if len(text) <= MOST_CHARACTERS else text[:half] + "\n...\n" + text[-half:]
    sys.stdout.write("\n" + json.dumps({"by": how, "code": code, "late": late, "text": text}) + "\n")
