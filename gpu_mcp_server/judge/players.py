"""The two players of a task, from their invitation until both are loaded and calibrated."""

import contextlib
import math
import time
from typing import Any, Dict, Generator

from devices import Device
from rounds import OPEN_S, Cost, named, rehearsed_cost
from series import HALF_WIDTH
from supervisor import Player, Supervisor, link_to
from tensors import LARGE_ELEMENTS
from verdicts import JudgeFailed, incorrect

START_S = 120.0
"""For the other processes to import what they need; torch on a cold disk takes most of it."""
READY_S = 0.02
"""In so long a process answers that had imported everything before its job."""
REHEARSE_S = 0.05
"""For more empty passes than there always are, where a task says nothing else."""
PUBLIC = (
    "device",
    "framework",
    "entry",
    "symbol",
    "inputs",
    "outputs",
    "gpu_index",
    "candidate",
    "problem",
    "state",
    "constants",
    "pool",
    "libraries",
    "backward",
)
"""What the other processes may know of the task: neither seed nor tolerances."""


def may_draw_there(task: Dict[str, Any]) -> bool:
    """Say whether the reference may draw large weights on the GPU: there are some, and who else needs them gets them.

    A ModelNew makes its own from the common seed. It does so on the processor, as in KernelBench, and so does the
    reference then: what it derives from them must not depend on where the problem drew its own.
    """
    if task["device"] != "cuda" or task.get("problem") != "module" or task["candidate"] == "model":
        return False
    weights = (spec for spec in task["inputs"] if spec.get("distribution") == "weights")
    return any(math.prod(spec["shape"]) >= LARGE_ELEMENTS for spec in weights)


class Players:
    """Brings candidate and reference to where they can be played with.

    Attributes:
        supervisor: The line to who stops and ends them.
        versions: What they run on, by role and name.
        costs: What an empty pass of each takes.
        steps: Seconds of each step.
    """

    def __init__(self, task: Dict[str, Any], torch_seed: int) -> None:
        self.task = task
        self.weights: Dict[str, Any] = {"torch_seed": torch_seed, "large_there": may_draw_there(task)}
        """What the reference constructs a model with."""
        self.drawn_on_gpu = False
        self.supervisor = Supervisor(link_to("supervisor"))
        self.versions: Dict[str, str] = {}
        self.costs: Dict[str, Cost] = {}
        self.steps: Dict[str, float] = {}

    def invite(self, role: str) -> Player:
        """Let a player start; it imports what it needs while the owner goes on."""
        player = Player(role, link_to(role), self.supervisor)
        if role == "candidate":
            player.prepare_s = float(self.task.get("prepare_s") or 0)
        player.tell("hello", task={name: self.task.get(name) for name in PUBLIC})
        return player

    def welcome(self, player: Player) -> None:
        """Wait until a player has started."""
        with self.step("wait for " + player.role):
            reply = player.hear(START_S)
        if reply.get("error"):
            raise JudgeFailed("the %s did not start: %s" % (player.role, str(reply["error"])[:2000]))
        for name, version in dict(reply.get("versions", {})).items():
            self.versions["%s_%s" % (player.role, name)] = str(version)[:40]

    def starts_beside(self, reference: Player) -> bool:
        """Have a reference that was there before its job make its context and load the problem while the others start.

        One that still imports does so after the candidate was calibrated and loaded: a context that is being made
        would be in the way of the clock.
        """
        if self.task["device"] == "cpu" or not reference.link.pending(READY_S):
            return False
        self.welcome(reference)
        reference.tell("start", **self.weights)
        return True

    def start(self, device: Device, candidate: Player, reference: Player, starts: bool) -> None:
        """Wait for both, calibrate, load; the candidate first, so that one that cannot be loaded is told at once.

        On the CPU both must have started before anything is calibrated, as they share the cores.

        Args:
            device: The task's.
            candidate: Invited.
            reference: Invited.
            starts: Whether it was told already to make its context and to load the problem.
        """
        if device.kind == "cpu":
            self.welcome(reference)
        loaded: Dict[str, Any] = {}
        if starts:
            with self.step("context and load of reference"):
                loaded = named(reference.hear(2 * OPEN_S), "start and load")
            reference.freeze()  # the problem's threads, if it has some, must not make the candidate's passes dearer
        self.welcome(candidate)
        if starts:
            with self.step("device alone"):
                device.alone()
        self._calibrate(candidate, device)
        device.room_bytes = device.free_bytes()
        with self.step("load candidate"):
            reply = candidate.ask("load", candidate.prepare_s or OPEN_S, torch_seed=self.weights["torch_seed"])
        if reply.get("error"):
            raise incorrect(str(reply["error"])[:2000])
        candidate.freeze()
        free = device.free_bytes()
        if not starts:
            if device.kind != "cpu":
                self.welcome(reference)
            with self.step("context of reference"):
                named(reference.ask("start", OPEN_S), "start")
        self._calibrate(reference, device)
        if not starts:
            with self.step("load reference"):
                loaded = named(reference.ask("load", OPEN_S, **self.weights), "load")
        device.room_bytes -= free - device.free_bytes()
        self.drawn_on_gpu = loaded.get("large_there") is True

    @contextlib.contextmanager
    def step(self, name: str) -> Generator[None, None, None]:
        """Note how long it takes."""
        begin = time.perf_counter()
        yield
        self.steps[name] = round(time.perf_counter() - begin, 4)

    def _calibrate(self, player: Player, device: Device) -> None:
        with self.step("calibrate " + player.role):
            error_s = float(self.task.get("half_width") or HALF_WIDTH) * float(self.task["round_ms"]) / 1000
            patience_s = float(self.task.get("rehearse_s") or REHEARSE_S)
            self.costs[player.role] = rehearsed_cost(player, device, error_s, patience_s)
        player.thaw()
