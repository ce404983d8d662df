"""Verdicts kept by all that decided them, so that an identical request is answered at once, and says so."""

import hashlib

from pydantic import ValidationError

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.build_cache import BuildCache, key_of
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.required_instructions import NOT_READ
from gpu_mcp_server.services.evaluation.judge_files import judge_sha256
from gpu_mcp_server.services.evaluation.judge_job import GENERATION
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.records.attempts import AttemptStore


class VerdictCache:
    """Evaluations under the hash of what was asked: a judged one, never one that was voided."""

    def __init__(self, cache: BuildCache, experience: AttemptStore) -> None:
        self._cache, self._experience = cache, experience

    async def get(self, key: str, told: bool = False) -> Evaluation | None:
        """Return the evaluation of an identical request, saying that it is kept and since when.

        Where the caller `told` a note or a parent of the attempt that is not made, that is said too.

        None where there is none, its evidence is gone, or its attempt was voided. One that was confirmed has the
        figures of its confirmation run.
        """
        found = await self._cache.get(key, artifact="evidence_artifact_id")
        if found is None:
            return None
        try:
            evaluation = Evaluation.model_validate(found)
        except ValidationError:  # an older version of ours kept it
            return None
        try:
            attempt = await self._experience.get(evaluation.attempt_id)
        except NotFound:  # somebody else asked the same; theirs is not for this user to see
            return None
        if attempt.voided:
            return None
        said = f"the verdict of an identical request, judged {attempt.created_at[:19]}Z; fresh judges anew"
        said += "; the note and parent of this call are not recorded" if told else ""
        return evaluation.model_copy(update={"kept": said, "seconds": {}, "trust": attempt.trust or ""})

    async def put(self, key: str, evaluation: Evaluation) -> None:
        """Keep an evaluation, if it is one that the same request would get again; a confirmation run has no key."""
        if evaluation.evidence.get("tensor_cores") == NOT_READ:
            return
        timed = evaluation.tier != "performance" or evaluation.speedup is not None or evaluation.time_us is not None
        if key and evaluation.status == "judged" and (evaluation.verdict != "correct" or timed):
            await self._cache.put(key, evaluation.model_dump(mode="json"))


def key_of_request(
    problem: Problem,
    source: CandidateSource,
    probe: HostProbe,
    *,
    device: tuple[str, str],
    flags: tuple[str, ...],
    entry: str,
    timing: TimingOptions,
) -> str:
    """Return the address of a request: all that decides its verdict.

    That is problem, candidate, settings, device and driver, and besides the judge's own files, the judge's Python with
    its libraries, the sandbox's level, the compilers and the host.

    Args:
        problem: What is answered.
        source: The candidate.
        probe: The host.
        device: Kind (`cpu`, `cuda`) and name.
        flags: Of the compiler.
        entry: The launcher.
        timing: How it is timed.
    """
    beside = sorted((path, hashlib.sha256(text.encode()).hexdigest()) for path, text in source.beside.items())
    judge = probe.judge
    parts = {
        "problem": problem.content_hash,
        "source": [
            hashlib.sha256(source.stored_form()[0]).hexdigest(),
            source.language,
            source.name if problem.program else "",
            beside,
        ],
        "how": [list(flags), entry, timing.model_dump(mode="json", exclude={"fresh", "baseline", "confirm"})],
        "device": [*device, probe.driver, probe.level, probe.why_untimed()],
        "judge": [
            GENERATION,
            judge_sha256(),
            *((judge.path, judge.version, judge.numpy, judge.torch, judge.triton) if judge else ()),
        ],
    }
    return key_of("evaluation", parts, probe)
