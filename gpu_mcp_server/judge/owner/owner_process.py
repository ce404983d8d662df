"""The owner's process: it holds the seed, the clock and the answers, and writes `verdict.json`."""

import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ..catch_log import CATCHES
from ..channel.supervisor_client import Player
from ..checks.memory_hog_check import kept_from
from ..checks.robustness import Robustness
from ..devices.device import Device
from ..evidence import commitment_of, compiled_hashes, identity, say, write_verdict
from ..folders import WORK
from ..inputs.hidden_shapes import hidden_shapes
from ..machine_limits import lacked_module, package_versions
from ..numerics.element_loops import ELEMENTS
from ..numerics.input_views import described_layouts
from ..numerics.random_inputs import Well
from ..numerics.stats import geometric_mean, weighted_speedup
from ..timing.clock_overhead import NO_COST
from ..timing.judging_setup import JudgingSetup
from ..timing.time_accounting import Ledger
from ..verdicts import VERDICTS, Judged, JudgeFailed, Refused, Unequipped, incorrect, registration_result, where_of
from .afterwards import recall, survey
from .module_signature import describe, without_cases
from .peer_processes import Players
from .shape_judge import Shape
from .shared_gpu import doubt_of, unsure
from .untimed_trials import Trials

FIRST_CALLS = 32
"""How many of them evidence lists."""
DESCRIBE_S = 120.0
"""For a module problem's own code to say what it takes and returns."""
CASES_S = 240.0
"""For that of a problem with cases."""
OVERHEAD_S = 0.5
"""What the rounds of all shapes may cost besides the running of candidate and reference, before fewer rounds do."""
SAY_S = 0.5
"""Between two words on how far a shape is: each wakes four processes, on the cores that the next round is timed on."""
LEFT_OUT = "hidden shapes were left out: %s"
TRIAL_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 22}
"""Of the largest tensor at a hidden shape."""


def device_of(task: Dict[str, Any], well: Well) -> Device:
    """Return the task's device."""
    if task["device"] == "cuda":
        from ..devices.cuda import CudaDevice

        return CudaDevice(well, task)
    from ..devices.cpu import CpuDevice

    return CpuDevice(well, task)


class Owner:
    """Judges one task."""

    def __init__(self, task: Dict[str, Any], ledger: Ledger) -> None:
        self.hidden = hidden_shapes(task, TRIAL_ELEMENTS[task["device"]])
        self.task, self.ledger = dict(task, hidden=self.hidden), ledger
        self.well = Well(task["seed"])
        self.torch_seed = self.well.word() >> 1
        """Of weights: reference and candidate construct their models from it."""
        self.tier = str(task.get("tier") or "performance")
        self.players = Players(self.task, self.torch_seed)
        self.ghost = ""
        """What ghost replay found, where the problem forbids libraries."""
        self.overhead_s = float(task.get("overhead_s", OVERHEAD_S))
        self.said_at = -SAY_S
        self.robustness = Robustness(task)
        self.declared = ""
        """At which declared shapes a candidate that failed is right."""
        self.shapes: List[Dict[str, Any]] = []
        self.judged: List[Shape] = []
        """What made the verdicts in `shapes`, where these were timed."""
        self.at = ""
        """Which of the declared shapes is judged, before a reason."""

    def register(self) -> Dict[str, Any]:
        """Try the reference."""
        say("starting the reference", 0.0)
        try:
            reference = self.players.invite("reference")
            self.players.wait_turn(self.ledger, reference)
            if self.task.get("describe"):
                self.players.welcome(reference)
                limit_s = CASES_S if self.task.get("adapter") else DESCRIBE_S
                self.task = describe(self.task, reference, limit_s, self.torch_seed)
                device = device_of(self.task, self.well)
            else:
                device = device_of(self.task, self.well)
                self.players.welcome(reference)
        except Unequipped:
            raise
        except JudgeFailed as error:
            return registration_result(str(error), status="refused")
        from .registration import Registration

        setup = self._setup(device, reference, reference)._replace(costs={"reference": NO_COST})
        result = Registration(setup, self.torch_seed).run()
        result["described"] = self.task.get("described") and without_cases(self.task["described"], result["dropped"])
        result["evidence"] = self._evidence(device, {}, {})
        return result

    def judge(self) -> Dict[str, Any]:
        """Judge the candidate; where other jobs on the GPU may have had what was missing, say that instead."""
        try:
            return self._judge()
        except JudgeFailed as error:
            if isinstance(error, Unequipped) or not self.players.were_beside():
                raise
            return unsure(str(error))

    def _judge(self) -> Dict[str, Any]:
        """Judge the candidate at every shape, until one is not correct."""
        say("starting reference and candidate", 0.0)
        # Published before the candidate runs: the seed that follows with the verdict proves that the owner chose
        # nothing later.
        print(json.dumps({"commitment": commitment_of(self.task["seed"])}), flush=True)
        CATCHES.goes_on = bool(self.task.get("study"))
        failed: Optional[Judged] = None
        trials: Optional[Trials] = None
        device, candidate, reference = self._open_device()
        before = device.snapshot()
        try:
            with self.ledger.part("start"):
                self.players.start(self.ledger, device, candidate, reference)
            self.overhead_s += self.ledger.besides_s()
            setup = self._setup(device, candidate, reference)
            trials = Trials(setup, self.robustness, self.hidden)
            self.shapes = self._shapes(trials, setup)
            if self.robustness.found and all(shape["verdict"] == "correct" for shape in self.shapes):
                with self.ledger.undivided("trials"):
                    recall(trials)
            self._replay(self.shapes, setup)
            self._look_alone(device, candidate)
        except Judged as judged:
            failed = judged
        except JudgeFailed as error:
            if self.players.were_beside():  # then nobody knows who had the memory
                raise
            failed = incorrect(self.at + kept_from(error, device, candidate))
        verdicts = [failed.verdict if failed else "", *(shape["verdict"] for shape in self.shapes)]
        reasons = [failed.reason if failed else "", *(str(shape["reason"]) for shape in self.shapes)]
        beside, is_cheat = self.players.were_beside(), "cheat" in verdicts
        doubt = doubt_of(device, candidate, reasons, self.judged, trials, is_cheat=is_cheat) if beside else None
        if trials and "incorrect" in verdicts:
            with self.ledger.undivided("trials"):
                self.declared = survey(trials, self.shapes)
        answered = device.aftermath() if candidate.lost else ""
        after = device.snapshot()
        for player in (reference, candidate):
            self.players.supervisor.dismiss(player.role)  # their contexts take their time to end
        if doubt is not None:
            return unsure(doubt)
        return self._result(device, trials, failed, answered, self._evidence(device, before, after))

    def _open_device(self) -> Tuple[Device, Player, Player]:
        """Wait for the job's turn on its device; return that, candidate and reference, which are starting."""
        lack = lacked_module(self.task.get("needs") or ())
        if lack:
            raise Unequipped("candidate", lack, early=True)
        with self.ledger.part("start"):
            reference, candidate = self.players.invite("reference"), self.players.invite("candidate")
        self.players.wait_turn(self.ledger, reference, candidate)
        self.players.enter_window(self.ledger, "shared")
        with self.ledger.part("start"):
            self.players.start_concurrently(reference, candidate)
            with self.players.step("device"):
                device = device_of(self.task, self.well)
            for player in (reference, candidate):
                player.link.spins = device.spins
        return device, candidate, reference

    def find_writes(self) -> Dict[str, Any]:
        """See which inputs a candidate writes to that failed before; this is no verdict."""
        from .write_search import search_writes

        reference, candidate = self.players.invite("reference"), self.players.invite("candidate")
        device = device_of(self.task, self.well)
        try:
            self.players.start(self.ledger, device, candidate, reference)
            found = search_writes(self._setup(device, candidate, reference), self.hidden)
        except (Judged, JudgeFailed) as error:
            return {"mode": "writes", "writes": [], "ended": str(error)[:300]}
        return dict(found, mode="writes")

    def _setup(self, device: Device, candidate: Player, reference: Player) -> JudgingSetup:
        return JudgingSetup(self.task, device, candidate, reference, self.players.costs, self.well, self.ledger)

    def _result(
        self,
        device: Device,
        trials: Optional[Trials],
        failed: Optional[Judged],
        answered: str,
        evidence: Dict[str, Any],
    ) -> Dict[str, Any]:
        """Return the verdict; `answered` says whether the device did afterwards, where the candidate was lost."""
        shapes = self.shapes
        verdict, reason = (failed.verdict, failed.reason) if failed else ("correct", "")
        where = where_of(failed)
        if shapes and verdict == "correct":
            worst = max(shapes, key=lambda s: VERDICTS.index(s["verdict"]))
            verdict = worst["verdict"]
            reason = "" if verdict == "correct" else "%s: %s" % (self._name(worst["dims"]), worst["reason"])
            where = worst.get("where")
        laid = described_layouts(self.task) if verdict == "incorrect" else ""
        correct, reason = verdict == "correct", "; ".join(filter(None, [reason, answered, laid]))
        # a NumPy reference computes on the processor
        no_baseline = device.kind == "cuda" and self.task["framework"] == "numpy"
        untimed = [self._untimed(s) for s in shapes if not (s.get("candidate") if no_baseline else s["speedup"])]
        compared = correct and not untimed and not no_baseline
        return {
            "mode": "judge",
            "verdict": verdict,
            "reason": reason,
            "where": where,
            "speedup": self._speedup() if compared else None,
            "tier": self.tier,
            "covers": trials.covers() if trials and correct else "",
            "declared": self.declared,
            "robust": trials.robust_text() if trials and (correct or self.robustness.found) else "",
            "note": self._note(untimed) if correct else "",
            "device": device.label,
            "shapes": shapes,
            "trials": trials.entries if trials else [],
            "trials_summary": "; ".join(filter(None, [trials.summary() if trials else "", self.ghost])),
            "evidence": dict(evidence, errors=trials.errors if trials else {}),
        }

    def _speedup(self) -> Optional[float]:
        """Return the speed-up over all shapes: of recorded calls of the time that all of them take, else the mean."""
        gains: List[float] = [shape["speedup"] for shape in self.shapes]
        cases: List[Dict[str, Any]] = self.task.get("cases") or []
        numbers: List[int] = [shape["dims"]["case"] - 1 for shape in self.shapes] if cases else []
        recorded: List[Any] = [cases[number].get("recorded") for number in numbers]
        if not recorded or not all(recorded):
            return geometric_mean(gains)
        for shape, one in zip(self.shapes, recorded):
            shape["calls"] = one["calls"]
        return weighted_speedup(gains, [s["calls"] * s["reference"]["median_us"] for s in self.shapes])

    def _shapes(self, trials: Trials, setup: JudgingSetup) -> List[Dict[str, Any]]:
        """Return the verdicts at the declared shapes, as far as the tier goes and until one is not correct.

        Raises:
            Judged: If the candidate fails elsewhere.
        """
        with self.ledger.undivided("trials"):
            failed = trials.run(say)
            if failed or self.tier != "performance":
                return [failed] if failed else trials.untimed()
        self.players.enter_window(self.ledger, "alone")
        setup.device.forget_looks(beside=self.players.beside)
        self.task["infinite"] = trials.infinite
        for number, dims in enumerate(self.task["shapes"]):
            self.at = self._name(dims) + ": "
            self.shapes.append(self._shape(number, setup))
            if trials.slow:
                self.shapes[-1]["unconfirmable"] = self.shapes[-1].get("unconfirmable") or LEFT_OUT % trials.slow
            if self.shapes[-1]["verdict"] != "correct":
                break
        self.at = ""
        return self.shapes

    def _replay(self, shapes: List[Dict[str, Any]], setup: JudgingSetup) -> None:
        """See whether a correct candidate falls back to a library where the problem forbids it.

        Raises:
            Judged: If it does.
        """
        passed = all(shape["verdict"] == "correct" for shape in shapes)
        if not passed or self.tier == "smoke" or self.task.get("libraries") != "forbidden":
            return
        if self.task["candidate"] == "library":
            self.ghost = "no ghost replay of a compiled launcher: it was linked without libraries instead"
            return
        from ..checks.ghost_replay_owner import ghost_replay

        with self.ledger.undivided("trials"):
            self.ghost = ghost_replay(setup)

    def _look_alone(self, device: Device, candidate: Player) -> None:
        """End a correct candidate, and see whether the reference is faster without it."""
        if not self.judged or not device.stops_calls or any(shape["verdict"] != "correct" for shape in self.shapes):
            return
        from .reference_recheck import SETTLED_S, Alone

        try:
            if not candidate.end():
                raise JudgeFailed("the candidate did not end")
            time.sleep(SETTLED_S)
            for shape, result in zip(self.judged, self.shapes):
                with self.ledger.part("wait"):
                    Alone(shape, result).look()
        except JudgeFailed as error:  # the verdict stands without it
            self.shapes[-1]["notes"].append("the reference was not timed without the candidate: %s" % str(error)[:300])

    def _untimed(self, shape: Dict[str, Any]) -> str:
        why = [note for note in shape.get("notes", ()) if note.startswith(("too short", "no time"))]
        why = why or ["the reference has no time"] if shape.get("candidate") else why
        return self._name(shape["dims"]) + (" (%s)" % why[0] if why else "")

    def _note(self, untimed: List[str]) -> str:
        if self.tier != "performance":
            return "tier %s: not timed" % self.tier
        if self.task.get("untimed"):
            return "correct; not timed: %s" % self.task["untimed"]
        return "no overall speed-up: not timed at %s" % "; ".join(untimed) if untimed else ""

    def _shape(self, number: int, setup: JudgingSetup) -> Dict[str, Any]:
        total = len(self.task["shapes"])

        def progress(text: str, part: float) -> None:
            if time.monotonic() < self.said_at + SAY_S:
                return
            self.said_at = time.monotonic()
            say("shape %d of %d: %s" % (number + 1, total, text), (number + part) / total)

        left = self.overhead_s - self.ledger.besides_s()
        share_s = max(0.0, left) / (total - number)
        shape = Shape(setup, number, share_s, self.robustness)
        self.judged.append(shape)
        return shape.judge(progress)

    def _name(self, dims: Dict[str, int]) -> str:
        return ", ".join("%s=%d" % pair for pair in dims.items()) or "the only shape"

    def _evidence(self, device: Device, before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
        evidence: Dict[str, Any] = {
            **identity(self.task["seed"], self.players.supervisor.how),
            "compiled_sha256": {**compiled_hashes(), **ELEMENTS.sha256},
            "owner_numpy": np.__version__,
            "elements_by": ELEMENTS.by,
        }
        evidence.update(self.players.versions)
        packages = package_versions(self.task.get("packages") or ())
        if packages:
            evidence["candidate_packages"] = packages
        evidence.update(device.evidence())
        evidence.update({"%s_before" % k: v for k, v in before.items()})
        evidence.update({"%s_after" % k: v for k, v in after.items()})
        measured = {role: cost for role, cost in self.players.costs.items() if cost.samples_s}
        for role, cost in measured.items():
            evidence["%s_pass_cost_us" % role] = round(cost.low_s * 1e6, 1)
            evidence["%s_pass_cost_spread_us" % role] = round(cost.spread_s * 1e6, 1)
            evidence["%s_pass_costs_us" % role] = [round(each * 1e6, 1) for each in cost.samples_s]
        floors: Dict[str, Any] = self.task.get("floors") or {}
        evidence["floor"] = (
            floors[device.label]["spec"] if device.label in floors else "none: no peak figures of %s" % device.label
        )
        evidence["start_seconds"] = self.players.steps
        evidence["other_jobs_beside"] = self.players.beside
        if CATCHES.goes_on:
            evidence["caught"] = CATCHES.caught
        waited_s = self.players.supervisor.waited_s  # within the other parts: to stop processes and let them go on
        window_s = round(self.ledger.window_s, 4)
        evidence["seconds"] = {**self.ledger.report(), "supervisor": round(waited_s, 4), "window": window_s}
        if self.ledger.first_calls_s:
            evidence["first_calls_s"] = self.ledger.first_calls_s[:FIRST_CALLS]
        return evidence


def main() -> int:
    """Read the task, judge, write the verdict."""
    ledger = Ledger()
    ELEMENTS.load()
    try:
        with open(os.path.join(WORK, "task.json"), encoding="utf-8") as file:
            task = json.load(file)
        if task.get("kind") == "program":
            from .program_owner import ProgramOwner

            owner: Any = ProgramOwner(task, ledger)
        else:
            owner = Owner(task, ledger)
        modes = {"register": "register", "writes": "find_writes", "judge": "judge"}
        result = getattr(owner, modes[task["mode"]])()
        write_verdict(result)
        if task.get("device") == "cuda":
            sys.stdout.flush()
            os._exit(0)  # a driver takes its time to end in order, and would wait for a lost GPU
    except Refused as error:
        lack = error.lack if isinstance(error, Unequipped) else None
        write_verdict({"mode": "judge", "refused": str(error), "advice": error.advice, "lacks": lack})
    except JudgeFailed as error:
        print("the judge failed: %s" % error, file=sys.stderr)
        return 1
    return 0
