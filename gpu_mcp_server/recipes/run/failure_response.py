"""Respond to failures in a run: look up an error that repeats, and ask the reflector after two of one stage."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_mcp_server.models.recipe import Hint, HintEffect, Stage, Verdict
from gpu_mcp_server.recipes.agents.agent_output import handed_over
from gpu_mcp_server.recipes.agents.prompt_builder import Findings, reflection_prompt
from gpu_mcp_server.recipes.run.run_context import Ground

FAILURES = 2
"""Failures of one stage since its last hint, after which the reflector is asked."""
SHOWN = 8
"""Failures that the reflector is shown."""
HINT = "hint"
"""Under which name an attempt's evidence has the effect of the hint that it followed."""
ORDER: tuple[Stage, ...] = ("specification", "code", "compile", "correctness", "performance", "target")


@dataclass
class FailureResponse:
    """The failures of one run so far, and the hint whose effect is still open."""

    stages: tuple[Stage, ...] = ("compile", "correctness", "performance")
    """At which a candidate that ends has failed."""
    failures: list[Verdict] = field(default_factory=list[Verdict])
    since_hint: Counter[Stage] = field(default_factory=Counter[Stage])
    hints: list[str] = field(default_factory=list[str])
    pending: tuple[Hint, Stage] | None = None

    async def respond(self, ground: Ground, label: str, verdicts: Sequence[Verdict], about: str) -> Findings:
        """Return what the documentation and the reflector say of new verdicts.

        Steps are lookup-LABEL and reflect-LABEL. The run asks neither once its budget is used up.
        """
        repeated = next((one for one in verdicts if any(same_error(one, other) for other in self._before(one))), None)
        failed = [one for one in verdicts if one.stage in self.stages]
        self.failures += failed
        self.since_hint.update(one.stage for one in failed)
        looked_up = await ground.look_up(f"lookup-{label}", repeated.reason) if repeated is not None else ""
        stage: Stage | None = next(
            (one.stage for one in reversed(failed) if self.since_hint[one.stage] >= FAILURES), None
        )
        hint = await self._reflect(ground, f"reflect-{label}", stage, about) if stage is not None else ""
        return Findings(looked_up=looked_up, hint=hint)

    def _before(self, verdict: Verdict) -> list[Verdict]:
        return [one for one in self.failures if one is not verdict]

    async def _reflect(self, ground: Ground, step: str, stage: Stage, about: str) -> str:
        if ground.journal.done(step) is None and ground.over() is not None:
            return ""
        self.since_hint[stage] = 0
        shown = [one for one in self.failures if one.stage == stage][-SHOWN:]
        answer = await ground.ask(step, "reflect", reflection_prompt(ground.plan, about, stage, shown, self.hints))
        hint, _ = handed_over(answer, Hint)
        if answer.status != "ok" or hint is None or hint.text in self.hints:
            return ""
        ground.hand_off(step, hint)
        self.hints.append(hint.text)
        self.pending = (hint, stage)
        return f"({hint.kind}) {hint.text}"

    async def score(self, ground: Ground, label: str, verdicts: Sequence[Verdict]) -> None:
        """Keep with the attempt that followed a hint whether candidates got further; call it ahead of any ending."""
        if self.pending is None or not verdicts:
            return
        (hint, before), self.pending = self.pending, None
        furthest = max(verdicts, key=lambda verdict: ORDER.index(verdict.stage))
        helped = ORDER.index(furthest.stage) > ORDER.index(before)
        effect = HintEffect(text=hint.text, before=before, after=furthest.stage, helped=helped)
        ground.hand_off(f"effect-{label}", effect)
        if furthest.attempt_id is not None:
            await ground.lab.store.experience.add_evidence(furthest.attempt_id, HINT, effect.model_dump_json())


def same_error(one: Verdict, other: Verdict) -> bool:
    """Say whether two verdicts failed with one error: its text is equal but for places, names and numbers."""
    return one.stage in ("compile", "correctness") and bool(one.signature) and one.signature == other.signature
