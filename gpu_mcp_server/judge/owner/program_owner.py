"""A program judged as a whole: the owner's side.

Every run of the candidate has a sandbox of its own, made before and killed after it, and fresh inputs or a fresh seed:
nothing that an earlier run left can serve a later one. The clock runs from the moment at which the player is told of
the inputs to the one at which everything in its sandbox stands still; only then outputs are read, through descriptors
that must be regular files. Reference and candidate take turns, and so does who begins.
"""

import contextlib
import json
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..channel.packet_link import Link
from ..channel.supervisor_client import Player, Supervisor
from ..evidence import commitment_of, identity, say
from ..numerics.random_inputs import Well
from ..numerics.stats import geometric_mean, half_width, median, times_of
from ..programs.output_parsers import READ_S, Series, Unreadable, said, within
from ..programs.program_runs import Match, Params, Ran, Runs, filled, matched, series_of
from ..timing.run_delay import While
from ..timing.time_accounting import Ledger
from ..verdicts import VERDICTS, Judged, JudgeFailed, ReferenceFailed, cheat, duration, incorrect, registration_result
from .peer_processes import START_S

FEWEST = 6
"""Timed runs below which no pair of order statistics reaches 95 %."""
NARROW = 0.02
PATIENCE = 4
"""Budgets after which fewer runs do."""
LATE_S = 1.0
LATE_AT_MOST_S = 5.0
EMPTY_RUNS = 5
COST = 0.02
"""Part of a time from which on the clock's own cost is told."""
SAID = {"verdict": r"(?i)\b(pass(?:ed)?|fail(?:ed|ure)?|validation \w+)\b"}
LEFT = "left %d processes running when it exited: no clock sees their work"
TRIVIAL = ("zeros", "ones", "mean")


class ProgramOwner:
    """Judges one program, or tries a problem's reference."""

    def __init__(self, task: Dict[str, Any], ledger: Ledger) -> None:
        self.task, self.ledger = task, ledger
        self.well = Well(task["seed"])
        self.supervisor = Supervisor(Link.from_environment("supervisor"))
        self.tier = str(task.get("tier") or "performance")
        self.versions: Dict[str, str] = {}
        self.notes: Dict[str, None] = {}
        self.said: List[str] = []
        self.runs_checked = 0
        self.varied: Optional[bool] = None
        """Whether other seeds were seen to have other answers."""
        self.empty_s: List[float] = []
        templates: List[str] = [*task["run"], *(task["generator"] or [])]
        self.secret = any("{seed}" in word for word in templates)
        self.players = [self._invited(role) for role in task["sandboxes"]]
        self.reference = Runs(task, self.welcome(self._invited("reference")))

    def _invited(self, role: str) -> Player:
        player = Player(role, Link.from_environment(role), self.supervisor)
        player.tell("hello", file_bytes=self.task["file_bytes"])
        return player

    def welcome(self, player: Player) -> Player:
        """Return a player once its sandbox has started."""
        reply = player.hear(START_S)
        if reply.get("error"):
            raise JudgeFailed("the sandbox of %s did not start: %s" % (player.role, str(reply["error"])[:500]))
        self.versions["player_python"] = str(dict(reply.get("versions", {})).get("python"))[:40]
        return player

    def question(self, params: Params) -> Tuple[List[str], Dict[str, bytes]]:
        """Draw a seed; return the command and the inputs of a run."""
        seed = self.well.word() & 0x7FFFFFFF  # it fits a C int
        inputs = self.reference.generate(params, seed) if self.task["generator"] else {}
        return filled(self.task["run"], params, seed), inputs

    def tolerance(self) -> Tuple[float, float]:
        """Return the relative and the absolute one."""
        return float(self.task["rtol"]), float(self.task["atol"])

    def answer(self, argv: List[str], inputs: Dict[str, bytes]) -> Tuple[Ran, List[Series]]:
        """Return the reference's run and what it answers."""
        with self.ledger.part("reference"):
            ran = self.reference.run(argv, inputs)
        left = self.reference.left()
        self.reference.clean()
        if left:
            raise ReferenceFailed("the reference program left %d processes running when it exited" % left)
        try:
            return ran, series_of(self.task["rules"], ran.files, "the reference program")
        except Unreadable as error:
            raise ReferenceFailed(str(error)) from None

    def judge(self) -> Dict[str, Any]:
        """Judge the candidate at every case, until one is not correct."""
        say("starting", 0.0)
        print(json.dumps({"commitment": commitment_of(self.task["seed"])}), flush=True)
        cases: List[Params] = self.task["cases"]
        if self.tier == "performance":
            self._empty(cases[0])
        shapes: List[Dict[str, Any]] = []
        for number, params in enumerate(cases[:1] if self.tier == "smoke" else cases):
            say("case %d of %d" % (number + 1, len(cases)), number / len(cases))
            shapes.append(Case(self, params, self._most(len(cases))).judge())
            if shapes[-1]["verdict"] != "correct":
                break
        worst = max(shapes, key=lambda s: VERDICTS.index(s["verdict"]))
        verdict = worst["verdict"]
        correct = verdict == "correct"
        gains = [s["speedup"] for s in shapes]
        at = ", ".join("%s=%s" % pair for pair in worst["dims"].items())
        return {
            "mode": "judge",
            "kind": "program",
            "tier": self.tier,
            "verdict": verdict,
            "reason": "" if correct else "%s%s" % (at and at + ": ", worst["reason"]),
            "speedup": geometric_mean(gains) if correct and all(gains) else None,
            "note": "; ".join([*self.notes, *("the program said %s (not believed)" % s for s in self.said)]),
            "weaker": self._weaker(),
            "inputs": self._inputs(),
            "said": self.said,
            "shapes": shapes,
            "trials_summary": self._trials_summary(correct),
            "evidence": self._evidence(),
        }

    def _trials_summary(self, correct: bool) -> str:
        """Say how many runs were right, and what stands behind each."""
        right = "%d run%s, each checked in full" % (self.runs_checked, "s" * (self.runs_checked != 1))
        inputs = "a fresh secret seed" if self.secret else "the same inputs"
        return "%s%s, in a sandbox of its own and with %s" % (
            "" if correct else "stopped at the first failure, after ",
            right,
            inputs,
        )

    def _most(self, cases: int) -> int:
        """Return how many runs of each case there are sandboxes for."""
        return max(1, len(self.task["sandboxes"]) // (1 if self.tier == "smoke" else cases))

    def _inputs(self) -> str:
        return "secret" if self.secret and self.varied is not False else "fixed"

    def _weaker(self) -> str:
        """Say in which ways this verdict is worth less than a kernel's."""
        text = "program: timed as a whole process; inputs %s" % self._inputs()
        if not self.secret:
            text += " (no secret parameter: outputs could be hard-coded)"
        elif self.varied is False:
            text += " (another seed did not change the outputs: they could be hard-coded)"
        if self.tier != "performance":
            text += "; %s tier: not timed" % self.tier
        elif self.task.get("untimed"):
            text += "; not timed: %s" % self.task["untimed"]
        return text

    def _empty(self, params: Params) -> None:
        """Time a process that does nothing, with the inputs of a case: what the clock counts on both sides."""
        _, inputs = self.question(params)
        runs = Runs(dict(self.task, rules=[], stdin=""), self.reference.player)
        for _ in range(EMPTY_RUNS):
            self.empty_s.append(runs.run(["true"], inputs).seconds)
            runs.clean()

    def register(self) -> Dict[str, Any]:
        """Try the reference: does it run, is it steady, do answers without work fail?"""
        tried: Dict[str, None] = {}
        times: List[float] = []
        reason = ""
        try:
            for number, params in enumerate(self.task["cases"]):
                say("case %d of %d" % (number + 1, len(self.task["cases"])), number / len(self.task["cases"]))
                reason = self._try(params, tried, times)
                if reason:
                    break
        except JudgeFailed as error:
            reason = str(error)
        if not reason:
            self.notes["verdicts will say: " + self._weaker()] = None
        return registration_result(reason, tried, self.notes, times, evidence=self._evidence())

    def _try(self, params: Params, tried: Dict[str, None], times: List[float]) -> str:
        argv, inputs = self.question(params)
        first, expected = self.answer(argv, inputs)
        again = self.answer(argv, inputs)[1]
        times.append(first.seconds * 1e6)
        if not any(series.values.size for series in expected):
            return "the reference program's outputs hold no numbers"
        for series in expected:
            if series.dtype.startswith(("float", "bfloat")) and np.isnan(series.values.astype(np.float64)).any():
                return "the reference program writes NaN in %s" % series.name
        unsteady = matched(expected, again, *self.tolerance()).reason
        if unsteady:
            return (
                "the reference program answers the same inputs differently: %s; "
                "compare nothing that differs from run to run, such as its own times" % unsteady
            )
        for name in TRIVIAL:
            tried[name] = None
            if not matched(expected, trivial(expected, name), *self.tolerance()).reason:
                return "an answer without any work passes: %s" % name
        if self.secret:
            other = self.answer(*self.question(params))[1]
            tried["the answer to another seed"] = None
            self.vary(expected, other)
        return ""

    def vary(self, one: Sequence[Series], other: Sequence[Series]) -> None:
        """Note whether two seeds have different answers."""
        self.varied = bool(self.varied) or bool(matched(one, other, *self.tolerance()).reason)

    def _evidence(self) -> Dict[str, Any]:
        evidence = dict(identity(self.task["seed"], self.supervisor.how), seconds=self.ledger.report())
        if self.empty_s:
            evidence["empty_process_us"] = round(median(self.empty_s) * 1e6, 1)
        return dict(evidence, **self.versions)


def trivial(expected: Sequence[Series], name: str) -> List[Series]:
    """Return an answer of the right length that takes no work; exact bytes have none but zeros."""
    found: List[Series] = []
    for series in expected:
        values, word = np.zeros_like(series.values), "0"
        if name == "ones" and series.dtype != "bfloat16":
            values, word = np.ones_like(series.values), "1"
        if name == "mean" and series.values.size > 1 and series.dtype != "bfloat16" and not series.exact:
            values = np.full_like(series.values, np.mean(series.values.astype(np.float64)))
            word = series.words.partition(" ")[0]  # it passes digit by digit where all are alike, as a mean does
        words = " ".join([word] * values.size) if series.words else ""
        found.append(series._replace(values=values, words=words))
    return found


class Case:
    """Judges the candidate at one case."""

    def __init__(self, owner: ProgramOwner, params: Params, most: int) -> None:
        self.owner, self.params, self.most = owner, params, most
        self.task = owner.task
        self.timed = owner.tier == "performance" and not self.task.get("untimed")
        self.samples: Tuple[List[float], List[float]] = ([], [])
        """Seconds of candidate and reference."""
        self.worst = Match("", 0.0, 0.0)
        self.notes: Dict[str, None] = {}
        self.before: List[List[Series]] = []
        """What was expected of earlier runs."""

    def judge(self) -> Dict[str, Any]:
        """Return the verdict at this case."""
        verdict, reason = "correct", ""
        try:
            self._play(warm=True)
            begin = time.monotonic()
            for number in range(1, self.most if self.timed else min(self.most, 2)):
                self._play(warm=False)
                if self.timed and self._enough(number, time.monotonic() - begin):
                    break
        except Judged as judged:
            verdict, reason = judged.verdict, judged.reason
        return self._result(verdict, reason)

    def _enough(self, runs: int, elapsed_s: float) -> bool:
        budget_s = float(self.task["budget_s"])
        if runs >= FEWEST:
            candidate, reference = self.samples
            return elapsed_s > budget_s or half_width([r / c for r, c in zip(reference, candidate)]) < NARROW
        if elapsed_s > PATIENCE * budget_s and runs >= 1:
            self.notes["only %d timed runs: a pair takes %.3g s" % (runs, elapsed_s / runs)] = None
            return True
        return False

    def _play(self, *, warm: bool) -> None:
        """Have both answer the same question; who begins changes."""
        argv, inputs = self.owner.question(self.params)
        runs = Runs(self.task, self.owner.welcome(self.owner.players.pop(0)))  # where nothing of it has run
        failed: Optional[Judged] = None
        ran: Optional[Ran] = None
        answer = self.owner.answer(argv, inputs) if len(self.before) % 2 == 0 else None
        try:
            with self.owner.ledger.part("candidate"):
                ran = runs.run(argv, inputs)
        except Judged as judged:
            failed = judged
            runs.player.freeze()
        try:
            reference, expected = answer or self.owner.answer(argv, inputs)
        except ReferenceFailed:
            left = 0 if failed else runs.left()
            if failed or left:  # what the candidate holds may be what the reference lacks
                raise failed or cheat(LEFT % left) from None
            raise
        self._check(runs, ran, failed, expected)
        runs.player.kill()
        if self.before:
            self.owner.vary(self.before[-1], expected)
        self.before.append(expected)
        self.owner.runs_checked += 1
        if not warm and ran is not None and self.timed:
            self.samples[0].append(ran.seconds)
            self.samples[1].append(reference.seconds)

    def _check(self, runs: Runs, ran: Optional[Ran], failed: Optional[Judged], expected: List[Series]) -> None:
        """Return if the outputs that were there when the clock stopped are right, and nothing goes on.

        Raises:
            Judged: If not.
        """
        if ran is not None and not self.owner.said:
            text = b"\n".join([ran.files["stdout"], ran.files["stderr"]])[-(1 << 20) :].decode("utf-8", "replace")
            with contextlib.suppress(Unreadable), within(READ_S):  # as of outputs: a pattern may go wrong on it
                self.owner.said = said(self.task.get("said") or SAID, text)
        if ran is not None:
            match = self._compared(ran.files, expected)
            if match.reason:
                failed = incorrect(match.reason)
            self.worst = Match("", max(self.worst.max_abs, match.max_abs), max(self.worst.max_rel, match.max_rel))
        if failed is None:
            left = runs.left()
            if left:
                raise cheat(LEFT % left)
            return
        if self._becomes_right(runs, expected):
            raise cheat("finished after it exited: its outputs were wrong when the clock stopped, and right later")
        raise failed

    def _compared(self, files: Dict[str, bytes], expected: List[Series]) -> Match:
        try:
            got = series_of(self.task["rules"], files, "the program")
        except Unreadable as error:
            return Match(str(error), 0.0, 0.0)
        return matched(expected, got, *self.owner.tolerance())

    def _becomes_right(self, runs: Runs, expected: List[Series]) -> bool:
        """Watch wrong outputs for a while, if anything is left that could mend them."""
        try:
            if not runs.left():
                return False
            late = While(max(LATE_S, 4 * runs.took_s), LATE_AT_MOST_S)
            while late.lasts():
                with contextlib.suppress(KeyError):  # an output that is not there yet
                    if not self._compared(runs.look(), expected).reason:
                        return True
            return False
        except Judged:
            return False

    def _result(self, verdict: str, reason: str) -> Dict[str, Any]:
        candidate_us, reference_us = ([s * 1e6 for s in side] for side in self.samples)
        checked = len(self.before)
        result: Dict[str, Any] = {
            "dims": self.params,
            "verdict": verdict,
            "reason": reason,
            "calls_checked": checked,
            "max_abs_error": self.worst.max_abs if checked else None,
            "max_rel_error": self.worst.max_rel if checked else None,
            "speedup": None,
        }
        if verdict == "correct" and candidate_us:
            result.update(times_of(candidate_us, reference_us, 1))
            result["samples"] = {"candidate_us": candidate_us, "reference_us": reference_us}
            empty_us = median(self.owner.empty_s) * 1e6
            if empty_us > COST * result["candidate"]["median_us"]:
                text = "%s of each time go to starting the process, laying its inputs and stopping the clock"
                self.notes[text % duration(empty_us / 1e6)] = None
        result["notes"] = list(self.notes)
        return result
