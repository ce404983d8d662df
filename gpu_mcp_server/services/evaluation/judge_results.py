"""Turns finished judge jobs into evaluations, and remembers them."""

import asyncio
import json
import statistics
from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.errors import GpuMcpError, JobBroken, MachineLacks
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.models.problem import DEGENERATE, Problem
from gpu_mcp_server.services.builds.candidate_source import source_of_attempt
from gpu_mcp_server.services.builds.disassembly import Inspector
from gpu_mcp_server.services.builds.python_siblings import with_own_places
from gpu_mcp_server.services.builds.required_instructions import NOT_READ, LookUp, look_up
from gpu_mcp_server.services.evaluation.extension_builds import fallback_of
from gpu_mcp_server.services.evaluation.judge_job import parse_verdict, seconds_of, shape_verdicts
from gpu_mcp_server.services.evaluation.missing_equipment import error_of
from gpu_mcp_server.services.evaluation.reference_times import ReferenceTimes
from gpu_mcp_server.services.evaluation.verdict_cache import VerdictCache
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.jobs.output_text import head_and_tail, safe_text
from gpu_mcp_server.services.problems.launcher_signatures import MISCALLED, signature_mismatch
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.services.records.trust import CONFIRMED_BY, ITSELF
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.base import source_name

SHOWN_EVIDENCE = (
    "seed_commitment",
    "harness_sha256",
    "memory",
    "freeze",
    "candidate_calls_by",
    "candidate_packages",
    "floor",
    "baseline",
    "handshake_us",
    "freeze_us",
    "fence_us",
    "sm_clock_mhz",
    "throttle_reasons",
    "tensor_cores",
    "load_before",
    "notes",
)
ON_PROCESSOR = "reference on the CPU"
"""What the owner says of a NumPy reference whose candidate is judged on a GPU."""
NO_SPEEDUP = {"speedup": None, "speedup_low": None, "speedup_high": None, "warm_speedup": None}
"""Of a shape that has no baseline on its device."""
NO_BASELINE = "no GPU baseline; give a torch reference (NumPy computes on the processor: the time of a call ranks)"
UNJUDGED = ("cancelled", "caller_lost", "timeout", "oom")
"""Ways for a judge job to end that are nobody's failure."""
REPLACED = "not judged: another job stands in for this one, and list_attempts has its verdict"
STREAM_BYTES = 65536
"""Of the candidate's stdout and of its stderr, as much as a host keeps (`OTHER_ROLES_KEEP`)."""
PRINTED_CHARS = 1200
"""Of what it wrote, that an answer shows."""


class Verdicts:
    """Reader of judge jobs' records, and writer of their verdicts."""

    def __init__(
        self,
        jobs: JobRunner,
        problems: Problems,
        experience: AttemptStore,
        artifacts: Artifacts,
        kept: VerdictCache,
        confirmations: Confirmations,
        inspector: Inspector,
        references: ReferenceTimes,
    ) -> None:
        self._kept, self._confirmations, self._inspector, self._references = kept, confirmations, inspector, references
        self._jobs, self._problems, self.experience, self._artifacts = jobs, problems, experience, artifacts

    async def finish(self, done: FinishedJob, row: JobRow) -> Evaluation:
        """Turn a finished judge job into its evaluation and remember it; may be done twice, counts once.

        Raises:
            JobBroken: If the judge itself failed.
            MachineLacks: If the candidate needs what the host does not have.
        """
        problem = await self._problems.get(str(row.context["problem_id"]))
        verdict = await self.read(done)
        if verdict is not None and verdict.get("lacks"):
            raise await self._lacking(verdict["lacks"], row)
        assert row.attempt_id
        if verdict is None:
            why = describe_end(done)
            await self._end(row, done.record.status or "broken", why)
            if done.record.status in UNJUDGED:
                return _unjudged(problem, row, done, why)
            raise JobBroken(
                f"The judge failed on {row.host!r}: {why}.",
                hint="The judge failed, not the candidate, which was not judged.",
            )
        if verdict.get("refused"):
            why = str(verdict["refused"])
            await self._end(row, "refused", why)
            note = "; ".join(filter(None, ["the candidate was not judged", verdict.get("advice")]))
            return _unjudged(problem, row, done, why, note=note)
        verdict = await self._compared(problem, verdict, row)
        evaluation = without_baseline(await self._evaluation(problem, verdict, done, row))
        evaluation = with_trust(evaluation, thorough=bool(row.context.get("thorough")))
        timed = [s.candidate for s in evaluation.shapes if s.candidate]
        await self.experience.finish(
            row.attempt_id,
            by_job=row.job_id,
            status="judged",
            verdict=evaluation.verdict,
            reason="; ".join(filter(None, [evaluation.reason, evaluation.fallback])) or None,
            speedup=evaluation.speedup,
            median_us=evaluation.time_us or (timed[-1].median_us if timed else None),
            level=done.record.level,
            job_id=row.job_id,
            evidence={
                **evaluation.evidence,
                **({"ranked_by": "time"} if evaluation.time_us is not None else {}),
                **({"unconfirmable": evaluation.unconfirmable()} if evaluation.unconfirmable() else {}),
                **({CONFIRMED_BY: ITSELF} if evaluation.trust == "confirmed" else {}),
                **kept_intervals(evaluation),
                "judge_s": evaluation.seconds["judge"],
                **{name: row.context.get(name) for name in ("generation", "resources", "compiler")},
                "verdict_artifact": evaluation.evidence_artifact_id,
                **({"headers": row.context["headers"]} if row.context.get("headers") else {}),
                **({"printed": evaluation.printed} if evaluation.printed else {}),
                **({"robust": evaluation.robust} if evaluation.robust else {}),
            },
        )
        if evaluation.trust in ("confirmed", "provisional"):
            await self._references.keep(await self.experience.get(row.attempt_id), verdict)
        return await self._owing(evaluation, row)

    async def _end(self, row: JobRow, status: str, reason: str) -> None:
        """Note that an attempt ended without a verdict, unless it is judged again by another job meanwhile."""
        await self.experience.finish(row.attempt_id or "", by_job=row.job_id, status=status, reason=reason)

    async def _compared(self, problem: Problem, verdict: dict[str, Any], row: JobRow) -> dict[str, Any]:
        """Return the verdict, of a correct candidate with what its machine code and earlier references say."""
        if verdict["verdict"] == "correct" and problem.requires:
            verdict = with_look_up(verdict, await look_up(self._inspector, problem.requires, row.context, row.host))
        return await self._references.compare(await self.experience.get(row.attempt_id or ""), verdict)

    async def _owing(self, evaluation: Evaluation, row: JobRow) -> Evaluation:
        """Let an attempt owe a confirmation run where it is the best, or one was asked for, and say so."""
        attempt_id = evaluation.attempt_id
        if evaluation.trust != "provisional" or (await self.experience.get(attempt_id)).kind != "evaluate":
            return evaluation
        if row.context.get("confirm"):
            await self._confirmations.owe(attempt_id, "asked")
        else:
            await self._confirmations.owe_best(attempt_id)
        stands = await self._confirmations.describe_states([attempt_id])
        return evaluation.model_copy(update={"confirmation": stands.get(attempt_id, "")})

    async def _lacking(self, lack: Mapping[str, Any], row: JobRow) -> MachineLacks:
        """Return the error that names what is missing, and forget the attempt.

        One whose answers were compared already stays, without a verdict: it could choose which of its runs count.
        """
        if row.attempt_id and lack.get("said"):
            source, name = await self._source(await self.experience.get(row.attempt_id))
            lack = {**lack, "said": with_own_places(lack["said"], source, name)}
        error = error_of(lack, row.host, (await self._jobs.probe(row.host)).judge)
        if row.attempt_id and lack.get("early"):
            await self.experience.forget(row.attempt_id)
        elif row.attempt_id:
            await self._end(row, "refused", str(error))
        return error

    async def _source(self, attempt: Attempt) -> tuple[str, str]:
        """Return the text of an attempt's one file, and its name; empty of a program or where none is kept."""
        if not attempt.source_artifact_id or attempt.language == "program":
            return "", ""
        given = await source_of_attempt(self._artifacts, attempt)
        return given.text, source_name(given.name, given.language)

    async def _evaluation(
        self, problem: Problem, verdict: dict[str, Any], done: FinishedJob, row: JobRow
    ) -> Evaluation:
        attempt = await self.experience.get(row.attempt_id or "")
        whole = json.dumps(verdict, indent=1).encode()
        evidence: dict[str, Any] = verdict.get("evidence", {})
        reason = verdict.get("reason") or ""
        shapes, fallback = with_replay_doubt(problem, shape_verdicts(verdict)), ""
        failed = verdict["verdict"] != "correct"
        source, name = await self._source(attempt)
        if source:
            reason = with_own_places(reason, source, name)
            shapes = [_with_own_places(shape, source, name) for shape in shapes]
            notes = [note for shape in shapes for note in shape.notes]
            fallback = fallback_of(source, bool(row.context.get("unbuilt")), notes)
        if failed and source:
            why = signature_mismatch(problem, source, attempt.entry or "launch", row.context["language"])
            reason = "; ".join(filter(None, [why, reason] if MISCALLED.search(why) else [reason, why]))
        return Evaluation(
            status="judged",
            verdict=verdict["verdict"],
            reason=reason,
            degenerate=DEGENERATE.get(problem.degenerate, ""),
            tier=verdict.get("tier"),
            weaker=verdict.get("weaker"),
            said=verdict.get("said") or [],
            printed=with_own_places(await self._printed(done, row) if failed else "", source, name),
            attempt_id=attempt.attempt_id,
            job_id=row.job_id,
            problem_id=problem.problem_id,
            problem_hash=problem.content_hash,
            language=row.context["language"],
            device=attempt.device,
            host=row.host,
            speedup=verdict.get("speedup"),
            covers=verdict.get("covers") or "",
            robust=verdict.get("robust") or "",
            declared=verdict.get("declared") or "",
            shapes=shapes,
            fallback=fallback,
            trials=verdict.get("trials_summary") or "",
            resources=row.context.get("resources") or [],
            diagnostics=_warnings(row) if failed else [],
            advice=row.context.get("advice") or [],
            level=done.record.level,
            weaker_because=done.record.weaker_because or None,
            evidence={k: evidence[k] for k in SHOWN_EVIDENCE if k in evidence} | _extensions(row),
            evidence_artifact_id=await self._artifacts.put(whole, name="verdict.json", media_type="application/json"),
            seconds={"compile": row.context["compile_s"], **seconds_of(done.record, verdict)},
            note="; ".join(filter(None, [verdict.get("note"), done.record.note])) or None,
        )

    async def _printed(self, done: FinishedJob, row: JobRow) -> str:
        """Return what the candidate's own process wrote; empty if it wrote nothing, or its host is out of reach."""
        hosts, allocation = self._jobs.hosts, row.context.get("allocation")

        async def read(stream: str) -> str:
            """Return a stream, and that it was longer."""
            _, data = await hosts.call(
                done.host, "read", job=row.job_id, role="candidate", stream=stream, offset=0, size=STREAM_BYTES
            )
            cut = f"\n[{stream}: the first {STREAM_BYTES} bytes are kept]" if len(data) >= STREAM_BYTES else ""
            return safe_text(data).strip() + cut

        try:
            if allocation and await hosts.end_of_allocation(done.host, allocation):
                return ""  # asking would take another one, in which nobody knows the job
            texts = await asyncio.gather(read("stdout"), read("stderr"))
        except GpuMcpError:
            return ""
        return head_and_tail("\n".join(filter(None, texts)), PRINTED_CHARS)[0]

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str | None:
        """Settle a judge job that job_status found finished, and say the verdict on one line."""
        if row.attempt_id is None:
            return REPLACED
        try:
            evaluation = await self.finish(done, row)
        except MachineLacks as error:
            return f"not judged: {error}"
        await self._kept.put(str(row.context.get("request") or ""), evaluation)
        if evaluation.verdict is None:
            return f"not judged: {evaluation.reason}"
        speed = f", speed-up {evaluation.speedup:.3g}" if evaluation.speedup else ""
        marked = f" ({evaluation.degenerate})" if evaluation.degenerate else ""
        robust = f", robust: {evaluation.robust}" if evaluation.robust else ""
        said = [f"verdict {evaluation.verdict}{marked}{speed}{robust}", evaluation.fallback, evaluation.reason]
        line = ": ".join(filter(None, said))
        return line + (f"; the candidate wrote (not believed):\n{evaluation.printed}" if evaluation.printed else "")

    async def read(self, done: FinishedJob) -> dict[str, Any] | None:
        """Return what the owner wrote, or None when it did not end in good order."""
        found = next((o for o in done.record.outputs if o.path == "verdict.json"), None)
        leader = done.record.leader
        if found is None or leader is None or leader.exit_code != 0:
            return None
        verdict = parse_verdict(await self._jobs.fetch(done.host, found.sha256))
        if verdict.get("beside"):  # who waits for it has it judged again
            text = "other jobs were on its GPU when it failed (%s), so that is no verdict; have it judged again"
            verdict["refused"] = text % str(verdict["beside"])[:300]
        return verdict


def kept_intervals(evaluation: Evaluation) -> dict[str, Any]:
    """Return the 95 % intervals of what the attempt's row keeps: its speed-up, and its median at the last shape."""
    speedup = evaluation.speedup_range()
    timed = [s.candidate for s in evaluation.shapes if s.candidate]
    found: dict[str, Any] = {"speedup_range": list(speedup)} if speedup else {}
    if timed and evaluation.time_us is None:
        found["median_range_us"] = [timed[-1].low_us, timed[-1].high_us]
    time_us = evaluation.time_range_us()
    dims = evaluation.shapes[-1].dims if timed and evaluation.time_us is None else {}
    found |= {"time_range_us": list(time_us)} if time_us else {}
    return found | ({"timed_at": ",".join(f"{name}={size}" for name, size in dims.items())} if dims else {})


def with_replay_doubt(problem: Problem, shapes: list[ShapeVerdict]) -> list[ShapeVerdict]:
    """Return shapes whose times cannot be confirmed where inputs come as they were recorded: answers could be kept."""
    if not (names := problem.adapter.get("replayable")):
        return shapes
    why = f"recorded inputs that cannot be varied ({', '.join(names)[:100]}) come again at every call"
    return [s if s.unconfirmable else s.model_copy(update={"unconfirmable": why}) for s in shapes]


def with_look_up(verdict: Mapping[str, Any], seen: LookUp) -> dict[str, Any]:
    """Return a correct verdict with what its machine code says; what is not known leaves its times unconfirmable."""
    if seen.lack:
        none = {"speedup": None, "covers": "", "robust": "", "note": ""}
        return {**verdict, **none, "verdict": "incorrect", "reason": seen.lack}
    if seen.found or seen.failed:
        verdict = {**verdict, "evidence": {**verdict.get("evidence", {}), "tensor_cores": seen.found or NOT_READ}}
    if seen.found:
        return dict(verdict)
    if not any(shape.get("candidate") for shape in verdict["shapes"]):
        return {**verdict, "note": "; ".join(filter(None, [verdict.get("note"), seen.doubt]))}
    doubts = ["; ".join(filter(None, [seen.doubt, shape.get("unconfirmable")])) for shape in verdict["shapes"]]
    shapes = [{**s, "unconfirmable": doubt} for s, doubt in zip(verdict["shapes"], doubts, strict=True)]
    return {**verdict, "shapes": shapes}


def with_trust(evaluation: Evaluation, *, thorough: bool) -> Evaluation:
    """Return an evaluation with the word for its time: one that is as thorough as a confirmation run needs none."""
    if evaluation.verdict != "correct" or (evaluation.speedup is None and evaluation.time_us is None):
        return evaluation
    doubt = evaluation.unconfirmable()
    word = f"unconfirmable: {doubt}" if doubt else "confirmed" if thorough else "provisional"
    return evaluation.model_copy(update={"trust": word})


def without_baseline(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without the speed-ups against a reference that computed on the processor for a GPU.

    What ranks then is the time of a call, where every shape has one that counts.
    """
    if evaluation.evidence.get("baseline") != ON_PROCESSOR:
        return evaluation
    times = [shape.candidate.median_us for shape in evaluation.shapes if shape.candidate]
    whole = statistics.geometric_mean(times) if times and len(times) == len(evaluation.shapes) else None
    shapes = [shape.model_copy(update=NO_SPEEDUP) for shape in evaluation.shapes]
    timed = {"shapes": shapes, "speedup": None, "time_us": whole}
    said = NO_BASELINE if evaluation.verdict == "correct" and evaluation.tier == "performance" else None
    return evaluation.model_copy(update={**timed, "baseline": said})


def _warnings(row: JobRow) -> list[Diagnostic]:
    """Return what the compiler said of a source that it took."""
    kept: list[Any] = row.context.get("warnings") or []
    return [Diagnostic.model_validate(each) for each in kept]


def _extensions(row: JobRow) -> dict[str, str]:
    kept = {name: str(row.context.get(name) or "") for name in ("extensions", "binding")}
    return {name: said for name, said in kept.items() if said}


def describe_end(done: FinishedJob) -> str:
    """Say how a judge job ended that wrote no verdict."""
    tail = safe_text(done.stderr).strip()[-600:]
    return "; ".join(filter(None, [f"job {done.record.id} {done.record.status}", done.record.note, tail]))


def _with_own_places(shape: ShapeVerdict, source: str, name: str) -> ShapeVerdict:
    notes = [with_own_places(note, source, name) for note in shape.notes]
    return shape.model_copy(update={"reason": with_own_places(shape.reason or "", source, name), "notes": notes})


def _unjudged(
    problem: Problem,
    row: JobRow,
    done: FinishedJob,
    why: str,
    note: str = "there is no verdict; evaluate_kernel may be called again",
) -> Evaluation:
    return Evaluation(
        status="refused",
        reason=why,
        attempt_id=row.attempt_id or "",
        job_id=row.job_id,
        problem_id=problem.problem_id,
        problem_hash=problem.content_hash,
        language=row.context["language"],
        host=row.host,
        level=done.record.level,
        note=note,
    )
