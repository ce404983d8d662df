"""The candidate's process: loads somebody's code and calls it when the owner says so. Nothing here is believed."""

import ctypes
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..channel.packet_link import Link
from ..devices.cuda_driver import CudaError
from ..memory import malloc_tuning
from ..memory.mapped_file import Mapping
from ..timing.stream_gate import take_gate
from .call_loop import BetweenWords

Reply = Dict[str, Any]

IOLBF = 1
"""Source: stdio.h of glibc and musl."""


class CpuMemory:
    """Mapped memory files."""

    trailing: Sequence[int] = ()
    """Arguments behind the dimensions."""
    said: Sequence[str] = ()
    """What was weaker than usual."""

    def __init__(self) -> None:
        # libgomp's idle threads spin for milliseconds by default, on the cores that must stop the clock.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        self.maps: List[Mapping] = []
        self.counts: Optional[Mapping] = None
        """The file of the outputs once more, for who unmaps what it is given."""
        self.returned: Optional[int] = None
        """Address at which the owner reads how many calls have returned."""

    def open(self, fields: Dict[str, Any], descriptors: Sequence[int]) -> List[int]:
        """Return the base addresses of inputs and outputs."""
        if descriptors:
            self.counts = Mapping(os.dup(descriptors[1]), writable=True)
            writable = fields.get("writable") is True
            self.maps = [Mapping(descriptors[0], writable=writable), Mapping(descriptors[1], writable=True)]
        for each, where in zip(self.maps, (fields["inputs"], fields["outputs"])):
            each.populate(where["stride"] * where["sets"])
        self.returned = self.counts.address + int(fields["returned"]) if self.counts and "returned" in fields else None
        return [m.address for m in self.maps]

    def close(self) -> None:
        """Keep the maps: the next shape lies in the same files."""

    def ping(self) -> None:
        """Do nothing: to be running again is all."""

    def finish(self) -> str:
        """Return an error of work that was still under way."""
        return ""


def memory_of(task: Dict[str, Any]) -> Any:
    """Return the memory of the task's device."""
    if task["device"] == "cuda":
        from .memory_cuda_client import CudaMemory

        return CudaMemory()
    return CpuMemory()


def kind_of(task: Dict[str, Any], memory: Any) -> Any:
    """Return what is called, by the task's kind of candidate."""
    if task["candidate"] == "launcher":
        from .launcher_file import LauncherFile

        return LauncherFile(task, memory)
    if task["candidate"] == "model":
        from .kernelbench_model import ModelFile

        return ModelFile(task, memory)
    from .shared_library import Library

    return Library(task, memory)


class Candidate:
    """Answers the owner's requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.task: Dict[str, Any] = {}
        self.memory: Any = None
        self.kind: Any = None
        self.gate: Any = None
        """Behind which calls are launched that the owner times on the GPU alone."""

    def serve(self) -> None:
        """Answer until the owner closes the link."""
        verbs: Dict[str, Callable[[Dict[str, Any], List[int]], Reply]] = {
            "hello": self.hello, "start": self.start, "load": self.load, "open": self.open, "prepare": self.prepare,
            "close": self.close, "gate": self.take_gate, "go": self.go, "finish": self.finish,
        }  # fmt: skip
        for message, descriptors in self.link.requests():
            reply = verbs[message["do"]](message, descriptors)
            reply["seq"] = message["seq"]
            self.link.send(reply)

    def hello(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Take the public part of the task and import what calls it; nothing touches a GPU here."""
        self.task = message["task"]
        self.memory = memory_of(self.task)
        try:
            self.kind = kind_of(self.task, self.memory)
        except ImportError as error:
            return {"error": "%s, which this kind of candidate needs" % error}
        return {"versions": dict(self.kind.versions(), python=sys.version.split()[0])}

    def start(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Make a context on the GPU, which is the job's by now."""
        try:
            self.memory.start()
        except CudaError as error:  # told, not died of: the owner's words for it name the driver's
            return {"error": str(error)}
        return {}

    def load(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Load the code and find what is called."""
        return self.kind.load(message)  # type: ignore[no-any-return]

    def open(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Map the buffers of a shape and prepare every call."""
        self.kind.close()
        self.kind.open(message, self.memory.open(message, descriptors))
        return {"notes": [*self.memory.said, *self.kind.notes()]}

    def prepare(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Make one call that is not timed: whatever compiles at its first call does so now."""
        reply: Reply = self.kind.first()
        error = reply.get("error") or self.memory.finish()
        about = {name: getattr(self.kind, name, None) for name in ("differ", "strides")}
        return {"error": error} if error else dict(about, notes=self.kind.notes())

    def close(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Let the buffers of a shape go."""
        self.kind.close()
        self.memory.close()
        return {}

    def take_gate(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Map the page with the words of gates; a driver without gates is no fault of the candidate's."""
        self.gate, reply = take_gate(self.gate, self.memory, descriptors[0], message)
        return reply

    def finish(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Wait for calls that were launched behind gates."""
        return {"error": self.memory.finish()}

    def go(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Switch in, and call once for each set."""
        self.memory.ping()
        if message.get("by_events"):
            return self.call_between_words(message["calls"], message["gate"])
        if "gate" in message:
            return self.launch_behind_gate(message["calls"], message["gate"], each=message.get("each") is True)
        if "spin_s" in message:
            return {"spun_s": self.memory.spin(float(message["spin_s"]))}  # nothing but this file is loaded yet
        if message.get("separators"):
            return self.separated(message["calls"], self.memory.separators(message["separators"]))
        if message.get("ghost"):
            return self.ghost(message["calls"])
        if message.get("copied"):
            return self.called(message["calls"], self.kind.run_copied)
        return self.called(message["calls"])

    def called(self, calls: int, run: Optional[Callable[[int], Reply]] = None) -> Reply:
        """Call for the first sets, one way or another, and wait for what was begun."""
        begin_ns = time.perf_counter_ns()
        reply: Reply = (run or self.kind.run)(calls)
        if reply.get("error") or reply.get("code"):
            return reply
        error = self.memory.finish()
        return {"error": error} if error else dict(reply, ran_ns=time.perf_counter_ns() - begin_ns)

    def launch_behind_gate(self, calls: int, value: int, *, each: bool) -> Reply:
        """Launch calls behind one closed gate, or each behind one of its own; return while nothing has run."""
        self.gate.enter(value)
        if not each:
            self.gate.close(value)
            reply: Reply = self.kind.run(calls) if calls else {}
            self.gate.end(value)
            return reply
        for number in range(calls):
            self.gate.close(value + number)
            reply = self.kind.run(1, number)
            self.gate.end(value + number)
            if reply.get("error") or reply.get("code"):
                return reply
        return {}

    def call_between_words(self, calls: int, value: int) -> Reply:
        """Call one by one, each behind a sweep of the cache, between two words that the GPU writes."""
        between = BetweenWords(self.gate, value, calls, self.memory.finish)
        reply: Reply = self.kind.run(calls, 0, between)
        return dict(reply, error=between.error) if between.error else reply

    def separated(self, calls: int, behind: Any) -> Reply:
        """Call with separators behind the calls."""
        reply = self.called(calls, lambda count: self.kind.run(count, 0, behind))
        failed = behind.code and not (reply.get("error") or reply.get("code"))
        return dict(reply, error="copies behind the calls failed with CUDA error %d" % behind.code) if failed else reply

    def ghost(self, calls: int) -> Reply:
        """Call with the candidate's own kernels made to do nothing."""
        reply: Reply = self.kind.ghost(calls)
        error = self.memory.finish()
        return dict(reply, error=reply.get("error") or error) if error else reply


def write_by_lines() -> None:
    """Write to stdout line by line, from Python and C, as who is killed leaves only what it has written."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, IOLBF, 0)


def main() -> int:
    """Serve the owner."""
    link = Link.from_environment("owner")
    malloc_tuning.keep()
    write_by_lines()
    Candidate(link).serve()
    return 0
