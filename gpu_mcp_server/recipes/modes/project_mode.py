"""Project mode: from a sentence to a program whose tests pass and can fail; four roles write, the build decides.

The analyst writes a specification, the coder sources, the tester programs below tests/, the builder build files. Then
the project is built and tested, and whoever the failure belongs to writes next. Where all tests pass, mistakes are
planted into the coder's sources: tests that stay green on one go back to the tester.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpu_mcp_server.models.recipe import ProjectChange, ProjectSpecification, Verdict
from gpu_mcp_server.recipes.agents.agent_output import handed_over
from gpu_mcp_server.recipes.agents.prompt_builder import Findings
from gpu_mcp_server.recipes.modes.structured_mode import SILENT
from gpu_mcp_server.recipes.run.failure_response import FailureResponse
from gpu_mcp_server.recipes.run.planted_mistakes import Mistake, choose_mistakes
from gpu_mcp_server.recipes.run.project_check import ProjectCheck, check_project
from gpu_mcp_server.recipes.run.project_files import Role, apply_change, read_files, write_files
from gpu_mcp_server.recipes.run.project_prompts import change_prompt, specification_prompt
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.services.experience.experience_search import signature

FOLDER = "project"
STEPS: Mapping[Role, str] = {"coder": "code", "tester": "test-files", "builder": "build-files"}
KINDS: Mapping[Role, str] = {"coder": "code", "tester": "plan", "builder": "plan"}
REASON_CHARACTERS = 1500
DISPUTABLE = ("tests_failed", "tests_disputed")
SAID_BEFORE = "\n\nThe test said:\n"


@dataclass
class ProjectDraft:
    """A project on its way."""

    ground: Ground
    specification: ProjectSpecification
    files: dict[str, str]
    asked: Counter[Role] = field(default_factory=Counter[Role])
    silent: Counter[Role] = field(default_factory=Counter[Role])
    """Answers in a row without a change that can be made."""
    checks: int = 0
    harmless: dict[str, str] = field(default_factory=dict[str, str])
    """Planted mistakes that break nothing, as the tester has it, with the reason."""
    objection: str = ""
    """What the role that was asked last has against a test, or for it."""

    async def write(self, role: Role, said: str, found: Findings, disputable: bool = False) -> Ending | None:
        """Ask a role for changes until it gives some that can be made; an ending where it does not."""
        refused, self.objection = "", ""
        while self.silent[role] < SILENT:
            if (over := self.ground.over()) is not None:
                return over
            self.asked[role] += 1
            step = f"{STEPS[role]}-{self.asked[role]:03}"
            prompt = change_prompt(self.ground.plan, self.specification, self.files, role, said, refused, found)
            answer = await self.ground.ask(step, KINDS[role], prompt)
            change, refused = handed_over(answer, ProjectChange)
            if answer.status != "ok":
                refused = f"the agent's call ended as {answer.status}: {answer.why}"
            elif change is not None:
                refused = self._take(role, change, disputable)
                if not refused:
                    self.ground.hand_off(step, change)
                    self.silent[role] = 0
                    return None
            self.silent[role] += 1
        return Ending("agent", f"{SILENT} answers of the {role} in a row gave no change; the last: {refused}"[:500])

    def _take(self, role: Role, change: ProjectChange, disputable: bool) -> str:
        """Make a role's changes, or keep what it objects to; returns why that cannot be, empty if it can."""
        if change.objection and not change.changes:
            self.objection = change.objection if disputable else ""
            return "" if disputable else "there is no failing test to object to"
        texts, refused = apply_change(self.files, change, role)
        if texts is None:
            return refused
        harmless = change.harmless if role == "tester" else {}
        if texts == self.files and not harmless.keys() - self.harmless.keys():
            return "it changes nothing"
        self.files, self.harmless = texts, {**self.harmless, **harmless}
        return ""

    async def check(self) -> ProjectCheck:
        """Build and test the project as it stands; where all is green, plant mistakes as well."""
        self.checks += 1
        step, files = f"check-{self.checks:03}", self.files

        async def work() -> dict[str, Any]:
            found = await check_project(self.ground, files)
            verdict = Verdict(
                stage=found.stage, outcome=found.outcome, reason=found.text[:REASON_CHARACTERS],
                signature=signature(found.text),
            )  # fmt: skip
            self.ground.hand_off(step, verdict)
            told = {"role": found.role, "text": found.text, "tests": found.tests}
            return {"outcome": found.outcome, "verdict": verdict.model_dump(mode="json"), **told}

        done = await self.ground.step(step, "check", work)
        found = ProjectCheck(done["outcome"], done["role"], done["text"], done["tests"])
        return await self._with_mistakes(found) if found.outcome == "green" else found

    async def _with_mistakes(self, found: ProjectCheck) -> ProjectCheck:
        """Return what is green as tests_too_weak where they stay green on a planted mistake."""
        caught, missed, harmless = 0, list[str](), list[str]()
        for number, mistake in enumerate(choose_mistakes(self.files), 1):
            outcome = await self._planted(f"plant-{self.checks:03}-{number:02}", mistake)
            caught += outcome == "caught"
            if outcome == "missed":
                (harmless if mistake.text() in self.harmless else missed).append(mistake.text())
        if missed or (harmless and not caught):
            missed = missed or harmless
            told = "All tests stay green on these planted mistakes:\n" + "\n".join(missed)
            return ProjectCheck("tests_too_weak", "tester", told, found.tests)
        said = f"{found.text}; each of {caught} planted mistakes made one fail" if caught else found.text
        said += "".join(f"; harmless as the tester has it: {each}: {self.harmless[each]}" for each in harmless)
        return ProjectCheck("green", None, said if caught else f"{said}; no mistake could be planted", found.tests)

    async def _planted(self, step: str, mistake: Mistake) -> str:
        """Build and test the project with a mistake, and say whether the tests caught it."""
        files = mistake.plant(self.files)

        async def work() -> dict[str, Any]:
            found = await check_project(self.ground, files)
            outcomes = {"green": "missed", "tests_failed": "caught"}
            return {"outcome": outcomes.get(found.outcome, f"not tested ({found.outcome})"), "mistake": mistake.text()}

        return str((await self.ground.step(step, "check", work))["outcome"])


async def project(ground: Ground) -> Ending:
    """Run the roles until the project is green, or somebody's iterations are used up."""
    specification = await _specified(ground)
    if isinstance(specification, Ending):
        return specification
    begun = await asyncio.to_thread(read_files, Path(ground.plan.problem)) if ground.plan.problem else {}
    state = ProjectDraft(ground, specification, begun)
    for role in ("coder", "tester", "builder"):
        if (ending := await state.write(role, "", Findings())) is not None:
            return ending
    return await _mended(state)


async def _mended(state: ProjectDraft) -> Ending:
    """Build, test and route until it ends."""
    ground, response, failed = state.ground, FailureResponse(("compile", "correctness")), Counter[tuple[str, Role]]()
    disputed: ProjectCheck | None = None
    while True:
        found = disputed or await state.check()
        where = ground.folder / FOLDER
        await asyncio.to_thread(write_files, where, state.files)
        if found.role is None:
            stopped = "target" if found.outcome == "green" else "compiled"
            return Ending(stopped, f"{found.text}; files: {where}"[:500])
        role = _turn_of(found, failed)
        failed[found.outcome, found.role] += 1
        most = _limit(ground, found)
        if failed[found.outcome, found.role] > most:
            why = f"{most} changes ended as {found.outcome}; the last: {' '.join(found.text.split())[:300]}"
            return Ending("iterations", f"{why}; files: {where}"[:500])
        hints = Findings() if disputed else await _find_out(state, response, found)
        if (ending := await state.write(role, found.text, hints, found.outcome in DISPUTABLE)) is not None:
            return ending
        disputed = _disputed(found, role, state.objection) if state.objection else None


async def _find_out(state: ProjectDraft, response: FailureResponse, found: ProjectCheck) -> Findings:
    """Return what the documentation and the reflector say of a failure."""
    ground, label = state.ground, f"{state.checks:03}"
    verdict = Verdict(
        stage=found.stage, outcome=found.outcome, reason=found.text[:REASON_CHARACTERS], signature=signature(found.text)
    )
    await response.score(ground, label, [verdict])
    return await response.respond(ground, label, [verdict], ground.plan.request)


def _disputed(found: ProjectCheck, role: Role, objection: str) -> ProjectCheck:
    """Return a failing test as the other side's turn: the tester's where the coder objects, and back."""
    said = found.text.partition(SAID_BEFORE)[2] or found.text
    other: Role = "coder" if role == "tester" else "tester"
    return ProjectCheck("tests_disputed", other, f"the {role} objects: {objection}{SAID_BEFORE}{said}", found.tests)


def _turn_of(found: ProjectCheck, failed: Mapping[tuple[str, Role], int]) -> Role:
    """Return who writes next: a symbol that stays undefined after the builder's turn is the coder's to define."""
    assert found.role is not None
    again = failed[found.outcome, found.role] % 2 == 1
    return "coder" if found.outcome == "link_failed" and again else found.role


def _limit(ground: Ground, found: ProjectCheck) -> int:
    limits = ground.plan.iterations
    kind: Literal["compile", "correctness"] = "correctness" if found.outcome.startswith("tests_") else "compile"
    return limits.correctness if kind == "correctness" else limits.compile


async def _specified(ground: Ground) -> ProjectSpecification | Ending:
    """Ask the analyst until there is a specification, as often as the plan allows."""
    refused = ""
    for number in range(1, ground.plan.iterations.specification + 1):
        step = f"specification-{number:03}"
        answer = await ground.ask(step, "specification", specification_prompt(ground.plan, refused))
        found, refused = handed_over(answer, ProjectSpecification)
        if answer.status != "ok":
            refused = f"{answer.status}: {answer.why}"
        elif found is not None:
            ground.hand_off(step, found)
            return found
    return Ending("specification", f"the agent gave no specification: {refused}"[:500])
