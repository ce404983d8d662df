"""The owner's process: it holds the seed, the clock and the answers, and writes `verdict.json`."""

import hashlib
import json
import os
import platform
import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np
from devices import Device
from fill import Well
from link import Link
from registration import Registration
from rounds import OPEN_S, Cost, empty_cost, named
from shapes import Shape
from stats import geometric_mean
from supervisor import Player, Supervisor
from verdicts import VERDICTS, Judged, JudgeFailed, incorrect

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.dirname(HERE)
VERSION = "1"
START_S = 120.0
"""For the other processes to import what they need; torch on a cold disk takes most of it."""
PUBLIC = ("device", "framework", "entry", "symbol", "inputs", "outputs", "gpu_index")
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

    return CpuDevice(well, float(task["rtol"]), float(task["atol"]))


class Owner:
    """Judges one task."""

    def __init__(self, task: Dict[str, Any]) -> None:
        self.task = task
        self.well = Well(task["seed"])
        self.commitment = hashlib.sha256(task["seed"].encode()).hexdigest()
        self.supervisor = Supervisor(self._link("supervisor"))
        self.versions: Dict[str, str] = {}
        self.costs: Dict[str, Cost] = {}

    def _link(self, role: str) -> Link:
        link = Link.from_environment(role)
        if link is None:
            raise JudgeFailed("no link to the %s in the environment" % role)
        return link

    def _player(self, role: str) -> Player:
        player = Player(role, self._link(role), self.supervisor)
        public = {name: self.task.get(name) for name in PUBLIC}
        reply = player.ask("hello", START_S, task=public)
        if reply.get("error"):
            raise JudgeFailed("the %s did not start: %s" % (role, str(reply["error"])[:2000]))
        for name, version in dict(reply.get("versions", {})).items():
            self.versions["%s_%s" % (role, name)] = str(version)[:40]
        return player

    def register(self) -> Dict[str, Any]:
        """Try the reference."""
        say("starting the reference", 0.0)
        device = device_of(self.task, self.well)
        try:
            reference = self._player("reference")
        except JudgeFailed as error:
            return {
                "mode": "register", "status": "refused", "reason": str(error),
                "tried": [], "notes": [], "reference_us": [],
            }  # fmt: skip
        result = Registration(self.task, device, reference, self.well).run()
        result["evidence"] = self._evidence(device, {}, {})
        return result

    def judge(self) -> Dict[str, Any]:
        """Judge the candidate at every shape, until one is not correct."""
        begin = time.monotonic()
        say("starting reference and candidate", 0.0)
        print(json.dumps({"commitment": self.commitment}), flush=True)
        device = device_of(self.task, self.well)
        before = device.snapshot()
        shapes: List[Dict[str, Any]] = []
        verdict, reason = "correct", ""
        try:
            players = self._start(device)
            for number, dims in enumerate(self.task["shapes"]):
                shapes.append(self._shape(number, dims, device, players))
                if shapes[-1]["verdict"] != "correct":
                    break
        except Judged as judged:
            verdict, reason = judged.verdict, judged.reason
        if shapes:
            worst = max(shapes, key=lambda s: VERDICTS.index(s["verdict"]))
            verdict = worst["verdict"]
            reason = "" if verdict == "correct" else "%s: %s" % (self._name(worst["dims"]), worst["reason"])
        correct = verdict == "correct"
        evidence = self._evidence(device, before, device.snapshot())
        evidence["judging_s"] = round(time.monotonic() - begin, 3)
        return {
            "mode": "judge",
            "verdict": verdict,
            "reason": reason,
            "speedup": geometric_mean([s["speedup"] for s in shapes]) if correct else None,
            "device": device.label,
            "shapes": shapes,
            "evidence": evidence,
        }

    def _start(self, device: Device) -> Tuple[Player, Player]:
        reference, candidate = self._player("reference"), self._player("candidate")
        for player in (reference, candidate):
            self.costs[player.role] = empty_cost(player, device)
            player.thaw()
        named(reference.ask("load", OPEN_S), "load")
        reply = candidate.ask("load", OPEN_S)
        if reply.get("error"):
            raise incorrect(str(reply["error"])[:2000])
        return candidate, reference

    def _shape(
        self, number: int, dims: Dict[str, int], device: Device, players: Tuple[Player, Player]
    ) -> Dict[str, Any]:
        total = len(self.task["shapes"])

        def progress(text: str, part: float) -> None:
            say("shape %d of %d: %s" % (number + 1, total, text), (number + part) / total)

        return Shape(self.task, dims, device, players, self.costs, self.well).judge(progress)

    def _name(self, dims: Dict[str, int]) -> str:
        return ", ".join("%s=%d" % pair for pair in dims.items()) or "the only shape"

    def _evidence(self, device: Device, before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
        evidence: Dict[str, Any] = {
            "harness_version": VERSION,
            "harness_sha256": harness_hash(),
            "seed_commitment": self.commitment,
            "seed": self.task["seed"],
            "owner_python": platform.python_version(),
            "owner_numpy": np.__version__,
            "freeze": self.supervisor.how,
        }
        evidence.update(self.versions)
        evidence.update(device.evidence())
        evidence.update({"%s_before" % k: v for k, v in before.items()})
        evidence.update({"%s_after" % k: v for k, v in after.items()})
        for role, cost in self.costs.items():
            evidence["%s_pass_cost_us" % role] = round(cost.median_s * 1e6, 1)
            evidence["%s_pass_cost_spread_us" % role] = round(cost.spread_s * 1e6, 1)
        return evidence


def main() -> int:
    """Read the task, judge, write the verdict."""
    try:
        with open(os.path.join(WORK, "task.json"), encoding="utf-8") as file:
            task = json.load(file)
        owner = Owner(task)
        result = owner.register() if task["mode"] == "register" else owner.judge()
        temporary = os.path.join(WORK, "verdict.json.part")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(result, file)
        os.replace(temporary, os.path.join(WORK, "verdict.json"))
    except JudgeFailed as error:
        print("the judge failed: %s" % error, file=sys.stderr)
        return 1
    return 0
