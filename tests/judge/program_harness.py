"""Runs the judge's processes for a program as hostd does, without a sandbox; folders of files are built beforehand."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpu_mcp_server.judge.programs.program_process import KEPT
from tests.compiled import compiled
from tests.judge import harness
from tests.judge.harness import Outcome, lay, pair, start
from tests.judge_package import judge_tree

SUM: dict[str, Any] = {
    "kind": "program",
    "device": "cpu",
    "run": ["./app", "{n}", "{seed}"],
    "generator": None,
    "inputs": [],
    "stdin": "",
    "cases": [{"n": 1000}],
    "rules": [{"name": "y", "source": "out.bin", "format": "binary", "dtype": "float32"}],
    "rtol": 1e-5,
    "atol": 1e-6,
    "file_bytes": 1 << 24,
    "run_timeout_s": 20,
    "budget_s": 1.0,
    "tier": "performance",
}
PROGRAM = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int n = atoi(argv[1]); unsigned s = atoi(argv[2]); float total = 0;
    FILE *out = fopen("out.bin", "wb");
    for (int i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        float y = sinf((s >> 8) / 16777216.0f); total += y;
        fwrite(&y, 4, 1, out);
    }
    fclose(out);
    printf("total %.6f\\nTest PASSED in 0.001 ms\\n", total);
    return 0;
}
"""


class Supervisor(harness.Supervisor):
    """Freezes everything below a process, whatever session it is in."""

    def answer(self, request: dict[str, Any]) -> None:
        pid = self.processes[request["role"]].pid
        number = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "kill": signal.SIGKILL}[request["do"]]
        while True:
            for each in [pid, *below(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
            if request["do"] != "freeze" or self.stopped(pid):
                break
        word = {"freeze": "frozen", "thaw": "thawed", "kill": "killed"}[request["do"]]
        self.say({word: True, "how": "sigstop"})


def below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    try:
        found = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except OSError:
        return []
    return [each for child in found for each in (child, *below(child))]


def project(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Lay a project's files and build its program, if it is one in C."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = files.get("app.c")
    if isinstance(source, str):
        shutil.copy(compiled("app", {"app.c": source}, "gcc", "-O1", "-o", "app", "app.c", "-lm"), folder)
    return folder


def judge_program(
    folder: Path,
    reference: Mapping[str, str | bytes] | str,
    candidate: Mapping[str, str | bytes] | str | None = None,
    *,
    sandboxes: int = 7,
    timeout_s: float = 100,
    code: Mapping[str, str] = MappingProxyType({}),
    newest: str = "",
    **task: Any,
) -> Outcome:
    """Judge a program (or register, without one), by files of the judge that are others; return what the owner wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    roles = {"reference": reference}
    names = [f"candidate_{n}" for n in range(sandboxes)] if candidate is not None else []
    roles |= dict.fromkeys(names, candidate)
    built: dict[int, Path] = {}
    whole = {**SUM, "mode": "judge" if names else "register", "seed": secrets.token_hex(32), "sandboxes": names, **task}
    owner_link, supervisor_link = pair()
    owner_links: dict[str, socket.socket] = {"supervisor": owner_link}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    tree = judge_tree(code)
    with (folder / "noise.txt").open("wb") as noise:
        for role, files in roles.items():
            if id(files) not in built:
                listed = {"app.c": files} if isinstance(files, str) else files
                built[id(files)] = project(folder / f"built-{role}", listed)
                if newest:  # one file, laid behind all others
                    os.utime(built[id(files)] / newest, (2e9, 2e9))
            owner_links[role], theirs = pair()
            work = lay(folder / role, {})
            shutil.copytree(built[id(files)], work / KEPT / "project")
            processes[role] = start("program", work, tree, {"owner": theirs}, noise)
        work = lay(folder / "owner", {"task.json": json.dumps(whole)})
        owner = start("owner", work, tree, owner_links, subprocess.PIPE)
    supervisor = Supervisor(supervisor_link, processes)
    supervisor.start()
    try:
        out, err = owner.communicate(timeout=timeout_s)
    finally:
        supervisor.over[1].send(b"x")
        supervisor.join()
        for process in [owner, *processes.values()]:
            for pid in [*below(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        for end in (*supervisor.over, supervisor_link):
            end.close()
        owner.stdout.close()
        owner.stderr.close()
    written = folder / "owner" / "verdict.json"
    verdict = json.loads(written.read_text()) if written.exists() else {}
    lines = [json.loads(line) for line in out.decode().splitlines()]
    return Outcome(verdict, out.decode(), err.decode(), owner.returncode, lines)
