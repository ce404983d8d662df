"""The owner's process: it holds the seed, the clock and the answers, and writes `verdict.json`."""

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any, Dict, Generator, List, Optional, Tuple

import numpy as np
from description import describe
from devices import Device
from elements import ELEMENTS
from fill import Well
from hidden import hidden_shapes
from hoarding import kept_from
from ledger import Ledger
from link import Link
from rounds import OPEN_S, Cost, named, rehearsed_cost
from series import HALF_WIDTH
from shapes import Shape
from stats import geometric_mean
from supervisor import Player, Supervisor
from trials import Trials
from verdicts import VERDICTS, Judged, JudgeFailed, Refused, incorrect, where_of

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.dirname(HERE)
VERSION = "1"
FIRST_CALLS = 32
"""How many of them evidence lists."""
START_S = 120.0
"""For the other processes to import what they need; torch on a cold disk takes most of it."""
READY_S = 0.02
"""In so long a process answers that had imported everything before its job."""
DESCRIBE_S = 120.0
"""For a module problem's own code to say what it takes and returns."""
OVERHEAD_S = 0.5
"""What the rounds of all shapes may cost besides the running of candidate and reference, before fewer rounds do."""
REHEARSE_S = 0.05
"""For more empty passes than there always are, where a task says nothing else."""
SAY_S = 0.5
"""Between two words on how far a shape is: each wakes four processes, on the cores that the next round is timed on."""
TRIAL_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 22}
"""Of the largest tensor at a hidden shape."""
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


def harness_hash() -> str:
    """Return the sha256 over names and contents of the judge's files."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(HERE)):
        path = os.path.join(HERE, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def say(text: str, done: float) -> None:
    """Report progress on stdout."""
    print(json.dumps({"progress": text, "done": round(done, 3)}), flush=True)


def device_of(task: Dict[str, Any], well: Well) -> Device:
    """Return the task's device."""
    if task["device"] == "cuda":
        from memory_cuda import CudaDevice

        return CudaDevice(well, task)
    from memory_cpu import CpuDevice

    return CpuDevice(well, task)


class Owner:
    """Judges one task."""

    def __init__(self, task: Dict[str, Any], ledger: Ledger) -> None:
        self.hidden = hidden_shapes(task, TRIAL_ELEMENTS[task["device"]])
        self.task, self.ledger = dict(task, hidden=self.hidden), ledger
        self.well = Well(task["seed"])
        self.commitment = hashlib.sha256(task["seed"].encode()).hexdigest()
        self.torch_seed = self.well.word() >> 1
        """Of weights: reference and candidate construct their models from it."""
        self.supervisor = Supervisor(self._link("supervisor"))
        self.tier = str(task.get("tier") or "performance")
        self.versions: Dict[str, str] = {}
        self.costs: Dict[str, Cost] = {}
        self.steps: Dict[str, float] = {}
        self.ghost = ""
        """What ghost replay found, where the problem forbids libraries."""
        self.overhead_s = float(task.get("overhead_s", OVERHEAD_S))
        self.said_at = -SAY_S
        self.shapes: List[Dict[str, Any]] = []
        self.at = ""
        """Which of the declared shapes is judged, before a reason."""

    def _link(self, role: str) -> Link:
        link = Link.from_environment(role)
        if link is None:
            raise JudgeFailed("no link to the %s in the environment" % role)
        return link

    def _invite(self, role: str) -> Player:
        """Let a player start; it imports what it needs while the owner goes on."""
        player = Player(role, self._link(role), self.supervisor)
        if role == "candidate":
            player.prepare_s = float(self.task.get("prepare_s") or 0)
        player.tell("hello", task={name: self.task.get(name) for name in PUBLIC})
        return player

    def _welcome(self, player: Player) -> None:
        """Wait until a player has started."""
        with self._step("wait for " + player.role):
            reply = player.hear(START_S)
        if reply.get("error"):
            raise JudgeFailed("the %s did not start: %s" % (player.role, str(reply["error"])[:2000]))
        for name, version in dict(reply.get("versions", {})).items():
            self.versions["%s_%s" % (player.role, name)] = str(version)[:40]

    def register(self) -> Dict[str, Any]:
        """Try the reference."""
        say("starting the reference", 0.0)
        try:
            reference = self._invite("reference")
            if self.task.get("describe"):
                self._welcome(reference)
                self.task = describe(self.task, reference, DESCRIBE_S, self.torch_seed)
                device = device_of(self.task, self.well)
            else:
                device = device_of(self.task, self.well)
                self._welcome(reference)
        except JudgeFailed as error:
            return {
                "mode": "register", "status": "refused", "reason": str(error),
                "tried": [], "notes": [], "reference_us": [],
            }  # fmt: skip
        from registration import Registration

        result = Registration(self.task, device, reference, self.well, self.torch_seed).run()
        result["described"] = self.task.get("described")
        result["evidence"] = self._evidence(device, {}, {})
        return result

    def judge(self) -> Dict[str, Any]:
        """Judge the candidate at every shape, until one is not correct."""
        say("starting reference and candidate", 0.0)
        print(json.dumps({"commitment": self.commitment}), flush=True)
        verdict, reason, where = "correct", "", None
        trials: Optional[Trials] = None
        with self.ledger.part("start"):
            reference, candidate = self._invite("reference"), self._invite("candidate")
            starts = self._starts_beside(reference)
            with self._step("device"):
                device = device_of(self.task, self.well)
            before = device.snapshot()
            for player in (reference, candidate):
                player.link.spins = device.spins
        try:
            with self.ledger.part("start"):
                self._start(device, candidate, reference, starts)
            self.overhead_s += self.ledger.besides_s()
            players = (candidate, reference)
            trials = Trials(self.task, device, players, self.costs, self.well, self.ledger, self.hidden)
            self.shapes = self._shapes(trials, device, players)
            self._replay(self.shapes, device, players)
        except Judged as judged:
            verdict, reason, where = judged.verdict, judged.reason, where_of(judged)
        except JudgeFailed as error:
            verdict, reason = "incorrect", self.at + kept_from(error, device, candidate)
        shapes = self.shapes
        if shapes and verdict == "correct":
            worst = max(shapes, key=lambda s: VERDICTS.index(s["verdict"]))
            verdict = worst["verdict"]
            reason = "" if verdict == "correct" else "%s: %s" % (self._name(worst["dims"]), worst["reason"])
            where = worst.get("where")
        correct = verdict == "correct"
        reason = "; ".join(filter(None, [reason, device.aftermath() if candidate.lost else ""]))
        untimed = [self._name(s["dims"]) for s in shapes if not s["speedup"]]
        return {
            "mode": "judge",
            "verdict": verdict,
            "reason": reason,
            "where": where,
            "speedup": geometric_mean([s["speedup"] for s in shapes]) if correct and not untimed else None,
            "tier": self.tier,
            "note": self._note(untimed) if correct else "",
            "device": device.label,
            "shapes": shapes,
            "trials": trials.entries if trials else [],
            "trials_summary": "; ".join(filter(None, [trials.summary() if trials else "", self.ghost])),
            "evidence": dict(self._evidence(device, before, device.snapshot()), errors=trials.errors if trials else {}),
        }

    def _shapes(self, trials: Trials, device: Device, players: Tuple[Player, Player]) -> List[Dict[str, Any]]:
        """Return the verdicts at the declared shapes, as far as the tier goes and until one is not correct.

        Raises:
            Judged: If the candidate fails elsewhere.
        """
        with self.ledger.undivided("trials"):
            failed = trials.run(say)
            if failed or self.tier != "performance":
                return [failed] if failed else trials.untimed()
        for number, dims in enumerate(self.task["shapes"]):
            self.at = self._name(dims) + ": "
            self.shapes.append(self._shape(number, dims, device, players))
            if self.shapes[-1]["verdict"] != "correct":
                break
        self.at = ""
        return self.shapes

    def _replay(self, shapes: List[Dict[str, Any]], device: Device, players: Tuple[Player, Player]) -> None:
        """See whether a correct candidate falls back to a library where the problem forbids it.

        Raises:
            Judged: If it does.
        """
        passed = all(shape["verdict"] == "correct" for shape in shapes)
        if not passed or self.tier == "smoke" or self.task.get("libraries") != "forbidden":
            return
        if self.task["candidate"] == "library":
            self.ghost = "no ghost replay of a compiled launcher: the linker was given no library instead"
            return
        from fallback import ghost_replay

        with self.ledger.undivided("trials"):
            self.ghost = ghost_replay(self.task, device, players, self.costs, self.well, self.ledger)

    def _note(self, untimed: List[str]) -> str:
        if self.tier != "performance":
            return "tier %s: not timed" % self.tier
        if self.task.get("untimed"):
            return "correct; not timed: %s" % self.task["untimed"]
        return "no overall speed-up: not timed at %s" % "; ".join(untimed) if untimed else ""

    def _starts_beside(self, reference: Player) -> bool:
        """Have a reference that was there before its job make its context and load the problem while the others start.

        One that still imports does so after the candidate was calibrated and loaded: a context that is being made
        would be in the way of the clock.
        """
        if self.task["device"] == "cpu" or not reference.link.pending(READY_S):
            return False
        self._welcome(reference)
        reference.tell("start", torch_seed=self.torch_seed)
        return True

    def _start(self, device: Device, candidate: Player, reference: Player, starts: bool) -> None:
        """Wait for both, calibrate, load; the candidate first, so that one that cannot be loaded is told at once.

        On the CPU both must have started before anything is calibrated, as they share the cores.

        Args:
            device: The task's.
            candidate: Invited.
            reference: Invited.
            starts: Whether it was told already to make its context and to load the problem.
        """
        if device.kind == "cpu":
            self._welcome(reference)
        if starts:
            with self._step("context and load of reference"):
                named(reference.hear(2 * OPEN_S), "start and load")
            reference.freeze()  # the problem's threads, if it has some, must not make the candidate's passes dearer
        self._welcome(candidate)
        if starts:
            with self._step("device alone"):
                device.alone()
        self._calibrate(candidate, device)
        device.room_bytes = device.free_bytes()
        with self._step("load candidate"):
            reply = candidate.ask("load", candidate.prepare_s or OPEN_S, torch_seed=self.torch_seed)
        if reply.get("error"):
            raise incorrect(str(reply["error"])[:2000])
        candidate.freeze()
        free = device.free_bytes()
        if not starts:
            if device.kind != "cpu":
                self._welcome(reference)
            with self._step("context of reference"):
                named(reference.ask("start", OPEN_S), "start")
        self._calibrate(reference, device)
        if not starts:
            with self._step("load reference"):
                named(reference.ask("load", OPEN_S, torch_seed=self.torch_seed), "load")
        device.room_bytes -= free - device.free_bytes()

    @contextlib.contextmanager
    def _step(self, name: str) -> Generator[None, None, None]:
        begin = time.perf_counter()
        yield
        self.steps[name] = round(time.perf_counter() - begin, 4)

    def _calibrate(self, player: Player, device: Device) -> None:
        with self._step("calibrate " + player.role):
            error_s = float(self.task.get("half_width") or HALF_WIDTH) * float(self.task["round_ms"]) / 1000
            patience_s = float(self.task.get("rehearse_s") or REHEARSE_S)
            self.costs[player.role] = rehearsed_cost(player, device, error_s, patience_s)
        player.thaw()

    def _shape(
        self, number: int, dims: Dict[str, int], device: Device, players: Tuple[Player, Player]
    ) -> Dict[str, Any]:
        total = len(self.task["shapes"])

        def progress(text: str, part: float) -> None:
            if time.monotonic() < self.said_at + SAY_S:
                return
            self.said_at = time.monotonic()
            say("shape %d of %d: %s" % (number + 1, total, text), (number + part) / total)

        left = self.overhead_s - self.ledger.besides_s()
        share_s = max(0.0, left) / (total - number)
        shape = Shape(self.task, number, device, players, self.costs, self.well, self.ledger, share_s)
        return shape.judge(progress)

    def _name(self, dims: Dict[str, int]) -> str:
        return ", ".join("%s=%d" % pair for pair in dims.items()) or "the only shape"

    def _evidence(self, device: Device, before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
        evidence: Dict[str, Any] = {
            "harness_version": VERSION,
            "harness_sha256": harness_hash(),
            "seed_commitment": self.commitment,
            "seed": self.task["seed"],
            "owner_python": sys.version.split()[0],
            "owner_numpy": np.__version__,
            "freeze": self.supervisor.how,
            "elements_by": ELEMENTS.by,
        }
        evidence.update(self.versions)
        evidence.update(device.evidence())
        evidence.update({"%s_before" % k: v for k, v in before.items()})
        evidence.update({"%s_after" % k: v for k, v in after.items()})
        for role, cost in self.costs.items():
            evidence["%s_pass_cost_us" % role] = round(cost.low_s * 1e6, 1)
            evidence["%s_pass_cost_spread_us" % role] = round(cost.spread_s * 1e6, 1)
            evidence["%s_pass_costs_us" % role] = [round(each * 1e6, 1) for each in cost.samples_s]
        floors: Dict[str, Any] = self.task.get("floors") or {}
        evidence["floor"] = (
            floors[device.label]["spec"] if device.label in floors else "none: no peak figures of %s" % device.label
        )
        evidence["start_seconds"] = self.steps
        evidence["seconds"] = self.ledger.report()
        if self.ledger.first_calls_s:
            evidence["first_calls_s"] = self.ledger.first_calls_s[:FIRST_CALLS]
        return evidence


def write(result: Dict[str, Any]) -> None:
    """Write the verdict at once or not at all."""
    temporary = os.path.join(WORK, "verdict.json.part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(temporary, os.path.join(WORK, "verdict.json"))


def main() -> int:
    """Read the task, judge, write the verdict."""
    ledger = Ledger()
    ELEMENTS.load()
    try:
        with open(os.path.join(WORK, "task.json"), encoding="utf-8") as file:
            task = json.load(file)
        if task.get("kind") == "program":
            from programs import ProgramOwner

            owner: Any = ProgramOwner(task, ledger)
        else:
            owner = Owner(task, ledger)
        result = owner.register() if task["mode"] == "register" else owner.judge()
        write(result)
        if "did not answer within" in str(result.get("reason", "")):
            sys.stdout.flush()
            os._exit(0)  # a driver that waits for a lost GPU would keep this process from ending
    except Refused as error:
        write({"mode": "judge", "refused": str(error), "advice": error.advice})
    except JudgeFailed as error:
        print("the judge failed: %s" % error, file=sys.stderr)
        return 1
    return 0
