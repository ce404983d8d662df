"""Runs the judge's three processes as hostd does, without a sandbox: links, freezing by SIGSTOP, exit events."""

import contextlib
import importlib.util
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpu_mcp_server.services.evaluation.judge_files import role_source
from tests.compiled import compiled
from tests.judge_package import JUDGE, judge_tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "softmax"

SOFTMAX: dict[str, Any] = {
    "device": "cpu",
    "framework": "numpy",
    "entry": "softmax",
    "symbol": "launch",
    "candidate": "library",
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["rows", "cols"], "distribution": "normal"}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["rows", "cols"]}],
    "shapes": [{"rows": 64, "cols": 1000}],
    "rtol": 1e-5,
    "atol": 1e-7,
    "budget_s": 1.0,
    "round_ms": 10,
    "max_rounds": 30,
    "round_timeout_s": 20,
}


def torch_python() -> str:
    """Return a Python with torch and NumPy: TEST_TORCH_PYTHON, or this one; empty if there is none."""
    named = os.environ.get("TEST_TORCH_PYTHON", "")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("torch") else ""


@dataclass
class Outcome:
    """Verdict of the judge, and its words on the way."""

    verdict: dict[str, Any]
    stdout: str
    stderr: str
    exit_code: int
    progress: list[dict[str, Any]] = field(default_factory=list)
    contexts_before_turn: int | None = None
    """On the fake GPU, where `CUDA_FAKE_CONTEXTS` names a file."""
    parts: list[str] = field(default_factory=list)
    """Of the GPU's time, as the owner asked for them."""


class Supervisor(threading.Thread):
    """Plays hostd: answers freeze, thaw and kill, and tells of exits."""

    def __init__(self, link: socket.socket, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        super().__init__(daemon=True)
        self.link, self.processes = link, processes
        self.over = socket.socketpair()
        self.contexts_before_turn: int | None = None
        self.parts: list[str] = []
        """Of the GPU's time, as the owner asked for them."""

    def run(self) -> None:
        waiting = {os.pidfd_open(p.pid): role for role, p in self.processes.items()}
        while True:
            ready, _, _ = select.select([self.link, self.over[0], *waiting], [], [])
            if self.over[0] in ready:
                return
            for descriptor in [d for d in ready if d in waiting]:
                self.tell_exit(waiting.pop(descriptor))
                os.close(descriptor)
            if self.link in ready:
                try:
                    packet = self.link.recv(65536)
                except ConnectionResetError:
                    packet = b""
                if not packet:
                    return
                self.answer(json.loads(packet))

    def tell_exit(self, role: str) -> None:
        code = self.processes[role].wait()
        event = {"event": "exit", "role": role, "oom": False}
        event.update({"exit_code": None, "signal": -code} if code < 0 else {"exit_code": code, "signal": None})
        self.say(event)

    def say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.link.send(json.dumps(message).encode())

    def answer(self, request: dict[str, Any]) -> None:
        if request["do"] in ("turn", "ready"):
            self.answer_turn(request["do"])
            return
        if request["do"] in ("window", "beside"):
            self.parts.append(request["role"])
            self.say({"window": True, "answered": True, "beside": bool(os.environ.get("JOBS_BESIDE"))})
            return
        pid = self.processes[request["role"]].pid
        number = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "kill": signal.SIGKILL}[request["do"]]
        at_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        if request["do"] == "freeze":
            while not self.stopped(pid):
                os.sched_yield()
        word = {"freeze": "frozen", "thaw": "thawed", "kill": "killed"}[request["do"]]
        self.say({word: True, "how": "sigstop", "at_s": at_s})

    def answer_turn(self, asked: str) -> None:
        """Give the turn at once; where contexts are counted, as in a line, when all has been imported."""
        log = os.environ.get("CUDA_FAKE_CONTEXTS")
        if log and asked == "ready":
            self.contexts_before_turn = len(Path(log).read_bytes()) if Path(log).exists() else 0
        if asked == ("ready" if log else "turn"):
            self.say({"turn": True})

    def stopped(self, pid: int) -> bool:
        """Say whether the process and everything that it started is stopped, or gone."""
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            children = [c for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
        except OSError:
            return True
        return state in "TtZX" and all(self.stopped(int(child)) for child in children)


def lay(work: Path, files: dict[str, Path | str]) -> Path:
    """Make a role's folder."""
    work.mkdir()
    for name, content in files.items():
        if isinstance(content, Path):
            shutil.copy(content, work / name)
        else:
            (work / name).write_text(content)
    return work


def start(
    role: str, work: Path, tree: Path, links: dict[str, socket.socket], output: Any, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """Start a role as hostd does one that was not made ahead."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", "TREE_JUDGE": str(tree)}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # references multiply small matrices here, if any
    environment.update({k: v for k, v in os.environ.items() if k.startswith(("LD_LIBRARY", "CUDA_", "OMP_"))})
    environment.update({f"LINK_{other.upper()}": str(end.fileno()) for other, end in links.items()})
    process = subprocess.Popen(
        [python, "-I", "-B", "-c", role_source() + "\nmain(sys.argv[1:])\n", role],
        cwd=work,
        env=environment,
        pass_fds=[end.fileno() for end in links.values()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output if role != "owner" else subprocess.PIPE,
        start_new_session=True,
    )
    for end in links.values():
        end.close()
    return process


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def judge(
    folder: Path,
    reference: Path | str,
    submitted: Path | None = None,
    timeout_s: float = 100,
    python: str = sys.executable,
    compiled_calls: bool = True,
    owner_files: Mapping[str, str] = MappingProxyType({}),
    **task: Any,
) -> Outcome:
    """Judge a candidate's file (or register, without one) and return what the owner wrote."""
    whole = {**SOFTMAX, "mode": "judge" if submitted else "register", "seed": secrets.token_hex(32), **task}
    owner_link, supervisor_link = pair()
    owner_reference, reference_owner = pair()
    owner_links = {"supervisor": owner_link, "reference": owner_reference}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    sources = {"calls.so": whole["candidate"] == "library", "elements.so": whole["device"] == "cpu"}
    built = [name for name, wanted in sources.items() if wanted and submitted and compiled_calls]
    code = {f"compiled/{name}": loops(name.replace(".so", ".c")).read_bytes() for name in built}
    tree, owners = judge_tree(code), judge_tree({**code, **owner_files})
    with (folder / "noise.txt").open("wb") as noise:
        if submitted:
            name = "candidate.so" if whole["candidate"] == "library" else "candidate.py"
            owner_links["candidate"], candidate_owner = pair()
            work = lay(folder / "candidate", {name: submitted})
            processes["candidate"] = start("candidate", work, tree, {"owner": candidate_owner}, noise, python)
        work = lay(folder / "reference", {"reference.py": reference})
        processes["reference"] = start("reference", work, tree, {"owner": reference_owner}, noise, python)
        work = lay(folder / "owner", {"task.json": json.dumps(whole)})
        owner = start("owner", work, owners, owner_links, subprocess.PIPE, python)
    supervisor = Supervisor(supervisor_link, processes)
    supervisor.start()
    try:
        out, err = owner.communicate(timeout=timeout_s)
    finally:
        supervisor.over[1].send(b"x")
        supervisor.join()
        for process in [owner, *processes.values()]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for end in (*supervisor.over, supervisor_link):
            end.close()
        owner.stdout.close()
        owner.stderr.close()
    written = folder / "owner" / "verdict.json"
    verdict = json.loads(written.read_text()) if written.exists() else {}
    lines = [json.loads(line) for line in out.decode().splitlines()]
    return Outcome(
        verdict, out.decode(), err.decode(), owner.returncode, lines, supervisor.contexts_before_turn, supervisor.parts
    )


def edited(name: str, *changes: tuple[str, str]) -> dict[str, str]:
    """Return a file of the judge in which texts that must be there are others, as `owner_files`."""
    text = (JUDGE / name).read_text()
    for before, after in changes:
        assert before in text, f"{name} has no {before!r}"
        text = text.replace(before, after)
    return {name: text}


def believing() -> dict[str, str]:
    """Return files with which the owner takes all rounds for times: on a busy machine it rightly gives none of some."""
    return {
        **edited("timing/clock_overhead.py", ("RESOLVED = 2.0", "RESOLVED = 0.0"), ("COSTLY = 4.0", "COSTLY = 0.0")),
        **edited("devices/gpu_idle_check.py", ("BUSY_US = 1000.0", "BUSY_US = 1e9")),
    }


def patient() -> dict[str, str]:
    """Return files with which the owner watches for seconds whether a wrong answer becomes right, as soon as it does.

    On a busy machine a thread that sleeps for milliseconds may take much longer.
    """
    return edited("timing/rounds.py", ("\nLATE_S = 0.05", "\nLATE_S = 5.0"))


def thorough() -> dict[str, str]:
    """Return files with which the owner tries every distribution, and draws each again between the first timed rounds.

    On a busy machine it rightly leaves trials out, and rounds may have a call each, few of which show what is rare.
    """
    return {
        **edited("checks/trial_setup.py", ("DUE_EARLY = 2", "DUE_EARLY = 4")),
        **edited("owner/trial_room.py", ("TRIALS_S, OWN_S = 20.0", "TRIALS_S, OWN_S = 600.0")),
    }


def loops(name: str) -> Path:
    """Compile a source of the judge, in whichever of its folders it lies."""
    (source,) = JUDGE.rglob(name)
    return build(source)


def build(source: Path) -> Path:
    """Compile a candidate in C, once as long as its text is the same."""
    made = source.name + ".so"
    command = ["gcc", "-std=c17", "-Wall", "-shared", "-fPIC", "-O3", "-march=native", "-fopenmp", "-o", made]
    return compiled(made, {source.name: source.read_text()}, *command, source.name, "-lm", "-lpthread")


def build_cuda(source: Path, into: Path) -> Path:
    """Compile a candidate in CUDA for the GPU that is there."""
    library = into / (source.name + ".so")
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-O3", "-arch=native", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library
