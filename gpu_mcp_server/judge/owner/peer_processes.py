"""The two players of a task, from their invitation until both are loaded and calibrated."""

import contextlib
import time
from typing import Any, Dict, Generator, Set

from ..channel.packet_link import Link
from ..channel.supervisor_client import Player, Supervisor
from ..devices.device import Device
from ..timing.clock_overhead import NO_COST, Cost, rehearsed_costs
from ..timing.rounds import OPEN_S, named
from ..timing.series import HALF_WIDTH
from ..timing.time_accounting import Ledger
from ..verdicts import JudgeFailed, incorrect

START_S = 120.0
"""For the other processes to import what they need; torch on a cold disk takes most of it."""
READY_S = 0.02
"""In so long a process answers that had imported everything before its job."""
TURN_IS_THERE_S = 0.1
"""In so long a supervisor answers whose job has its turn already."""
REHEARSE_S = 0.05
"""For more empty passes than there always are, where a task says nothing else."""
FEW_PASSES = 5
"""Empty passes where the loop's times are no more than advice. Nine take 0.17 s on an H200."""
PUBLIC = (
    "device", "framework", "entry", "symbol", "inputs", "outputs", "candidate", "interpreted", "problem", "state",
    "constants", "libraries", "backward", "copy_state", "layouts", "adapter", "cases", "case_layouts",
    "case_constants", "scalars", "max_bytes",
)  # fmt: skip
"""What the other processes may know of the task: neither seed nor tolerances."""


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
        self.torch_seed = torch_seed
        self.supervisor = Supervisor(Link.from_environment("supervisor"))
        self.versions: Dict[str, str] = {}
        self.costs: Dict[str, Cost] = {}
        self.steps: Dict[str, float] = {}
        self.begun: Set[str] = set()
        """Roles that make a context on the GPU, or have one."""
        self.beside = False
        """Whether other jobs had been on the GPU when the last window was entered."""

    def invite(self, role: str) -> Player:
        """Let a player start; it imports what it needs while the owner goes on."""
        player = Player(role, Link.from_environment(role), self.supervisor)
        player.device = self.task["device"]
        if role == "candidate":
            player.prepare_s = float(self.task.get("prepare_s") or 0)
            player.wants_gpu = str(self.task.get("wants_gpu") or "") if self.task["device"] == "cpu" else ""
        player.tell("hello", task={name: self.task.get(name) for name in PUBLIC})
        return player

    def wait_turn(self, ledger: Ledger, *invited: Player) -> None:
        """Wait for the GPU, which nothing of the job has touched yet; invited players import before its turn comes."""
        if self.task["device"] == "cuda":
            begin = time.monotonic()
            self.supervisor.wait_turn([player.link for player in invited], START_S)
            # The wait in line is no work of the judge's, so the ledger starts anew behind it.
            if time.monotonic() - begin > TURN_IS_THERE_S:
                ledger.restart()

    def enter_window(self, ledger: Ledger, part: str) -> None:
        """Have the GPU `alone` from now on, or `shared` with jobs of the kind; what is timed is timed alone."""
        if self.task["device"] == "cuda":
            with ledger.left_out():
                self.beside = self.supervisor.enter_window(part)

    def were_beside(self) -> bool:
        """Say whether other jobs have been on the GPU until now."""
        return self.task["device"] == "cuda" and self.supervisor.are_others_beside()

    def welcome(self, player: Player) -> None:
        """Wait until a player has started."""
        with self.step("wait for " + player.role):
            reply = player.hear(START_S)
        if reply.get("error"):
            raise JudgeFailed("the %s did not start: %s" % (player.role, str(reply["error"])[:2000]))
        for name, version in dict(reply.get("versions", {})).items():
            self.versions["%s_%s" % (player.role, name)] = str(version)[:40]

    def start_concurrently(self, *invited: Player) -> None:
        """Start those concurrently with the owner that had imported everything before."""
        for player in invited if self.task["device"] == "cuda" else ():
            if player.link.pending(READY_S):
                self._begin(player)

    def _begin(self, player: Player) -> None:
        """Have it make its context; the reference loads the problem meanwhile."""
        if player.role in self.begun:
            return
        self.welcome(player)
        if player.role == "reference":
            player.tell("start", torch_seed=self.torch_seed)
        else:
            player.tell("start")
        self.begun.add(player.role)

    def start(self, ledger: Ledger, device: Device, candidate: Player, reference: Player) -> None:
        """Wait for both, calibrate, load the candidate.

        Nothing is calibrated before both have started: they would share the cores, and a context that is being made is
        in the way of the clock. On a GPU the reference has loaded the problem by then, as that takes no longer. On the
        processor it loads last: the problem's threads, if it has some, must not make the passes dearer. The two never
        load side by side: a candidate could take the memory that the reference needs.

        Args:
            ledger: Time that others have the GPU is left out of it.
            device: The task's.
            candidate: Invited.
            reference: Invited.
        """
        if device.kind == "cpu":
            self.welcome(reference)
            self.welcome(candidate)
        else:
            self._begin(reference)
            self._begin(candidate)
            with self.step("context and load of reference"):
                named(reference.hear(2 * OPEN_S), "start and load")
            reference.freeze()  # its threads, as above
            with self.step("context of candidate"):
                reply = candidate.hear(OPEN_S)
            if reply.get("error"):
                raise JudgeFailed("the candidate's process got no context on the GPU: %s" % str(reply["error"])[:500])
        if device.stops_calls or not self._is_timed():
            self.costs = {player.role: NO_COST for player in (candidate, reference)}
            candidate.freeze()
            reference.freeze()
        else:
            self.enter_window(ledger, "alone")
            with self.step("device alone"):
                device.alone()
            with self.step("calibrate"):
                self._calibrate(candidate, reference, device)
            self.enter_window(ledger, "shared")
        # Before the candidate is loaded, which must not decide how many calls make a round by what it allocates.
        device.room_bytes = device.free_bytes()
        candidate.thaw()
        with self.step("load candidate"):
            reply = candidate.ask("load", candidate.prepare_s or OPEN_S, torch_seed=self.torch_seed)
        if reply.get("error"):
            raise incorrect(str(reply["error"])[:2000])
        candidate.freeze()
        reference.thaw()
        if device.kind == "cpu":
            with self.step("load reference"):
                named(reference.ask("load", OPEN_S, torch_seed=self.torch_seed), "load")

    def _is_timed(self) -> bool:
        """Say whether times are looked at; if not, what the clock costs does not matter, and takes the GPU for long."""
        return self.task.get("mode") != "writes" and (self.task.get("tier") or "performance") == "performance"

    def _calibrate(self, candidate: Player, reference: Player, device: Device) -> None:
        error_s = float(self.task.get("half_width") or HALF_WIDTH) * float(self.task["round_ms"]) / 1000
        patience_s = float(self.task.get("rehearse_s", REHEARSE_S))
        task, passes = self.task, device.rehearsals
        # At a first look gates give the time, and the loop beside them is no more than advice.
        if task.get("brief") and task.get("gated") and (task.get("basis") or "device") == "device":
            passes = FEW_PASSES
        self.costs = rehearsed_costs((candidate, reference), device, passes, error_s, patience_s)

    @contextlib.contextmanager
    def step(self, name: str) -> Generator[None, None, None]:
        """Note how long it takes."""
        begin = time.perf_counter()
        yield
        self.steps[name] = round(time.perf_counter() - begin, 4)
