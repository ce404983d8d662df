"""Finds the changes of the environment by lines of shell: modules and conda are functions, so a shell is asked.

The lines are a person's, from the settings, and run once outside any sandbox, in a login shell. Jobs get the variables
that came of them, never the lines.
"""

import os
import shutil
import signal
import subprocess
from typing import Any, Dict, List, Sequence

TIMEOUT_S = 60
TIDY_S = 2
FAILED = 97
MARK = "GPU_MCP_SETUP_MARK"
MOST_BYTES = 64 << 10
OWN = ("_", "SHLVL", "PWD", "OLDPWD", "HOME", "USER", "LOGNAME", "SHELL", "PS1", "TMPDIR", MARK)
"""Variables of the shell itself, or that a sandbox sets."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev")


def run_setup(lines: Sequence[str]) -> Dict[str, Any]:
    """Run the lines in a login shell.

    Returns:
        `variables` that are new or changed, `path` (folders that PATH got, in order), `roots` (what jobs must be
        shown), and `problem`: why there is none of it.
    """
    shell = shutil.which("bash") or "/bin/sh"
    # The first list comes from the login shell itself, so its own start-up files count as no change.
    steps = ["(env -0; printf '%s=\\0') >&3" % MARK]
    for number, line in enumerate(lines, 1):
        steps.append("%s\nif [ $? -ne 0 ]; then echo setup line %d failed >&2; exit %d; fi" % (line, number, FAILED))
    # Output of the lines goes to stderr: a module's greeting must not mix with the variables.
    script = "exec 3>&1 1>&2\n%s\nenv -0 >&3\n" % "\n".join(steps)
    process = subprocess.Popen(
        [shell, "-l", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A process group of its own, so that a timeout ends what the lines started as well.
        start_new_session=True,
    )
    try:
        printed, said = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _ended(process)
        return {"problem": "the setup lines did not end within %d s" % TIMEOUT_S}
    words = " ".join(said.decode("utf-8", "replace").split())[-300:]
    before, mark, after = printed.partition(b"%s=\0" % MARK.encode())
    if process.returncode or not mark:
        return {"problem": words or "the shell of the setup lines ended with %d" % process.returncode}
    return _changed(_variables(before), _variables(after))


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """End a shell and what it started: first so that it can remove its locks, which others would wait for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=TIDY_S)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _variables(printed: bytes) -> Dict[str, str]:
    pairs = (one.decode("utf-8", "surrogateescape").partition("=") for one in printed.split(b"\0") if one)
    return {name: value for name, _, value in pairs}


def _changed(before: Dict[str, str], after: Dict[str, str]) -> Dict[str, Any]:
    new = {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in OWN and name.isidentifier() and _plain(value)
    }
    path = _added(before.get("PATH", ""), new.pop("PATH", ""))
    folders = [*path, *_added(before.get("LD_LIBRARY_PATH", ""), new.get("LD_LIBRARY_PATH", ""))]
    folders += [new["CONDA_PREFIX"] + "/bin"] if "CONDA_PREFIX" in new else []
    if sum(len(n) + len(v) for n, v in new.items()) > MOST_BYTES:
        return {"problem": "the setup lines set more than %d bytes of variables" % MOST_BYTES}
    return {"variables": new, "path": path, "roots": _roots(folders)}


def _plain(value: str) -> bool:
    # bash exports functions as such values; a job's bash would import them.
    return value.isprintable() and not value.startswith("() {")


def _added(before: str, after: str) -> List[str]:
    known = set(before.split(os.pathsep))
    return [f for f in dict.fromkeys(after.split(os.pathsep)) if f.startswith("/") and f not in known]


def _roots(folders: Sequence[str]) -> List[str]:
    """Return what to show for folders of programs and libraries: their prefix, but never a home as a whole."""
    home = os.path.realpath(os.path.expanduser("~"))
    found: List[str] = []
    for folder in folders:
        prefix = os.path.dirname(folder) if os.path.basename(folder) in ("bin", "sbin", "lib", "lib64") else folder
        whole = os.path.realpath(prefix)
        if whole == "/" or home == whole or home.startswith(whole + "/"):
            prefix = folder
        if os.path.isdir(prefix) and not any(prefix == s or prefix.startswith(s + "/") for s in SYSTEM):
            found.append(prefix)
    return list(dict.fromkeys(found))
