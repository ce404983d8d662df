"""One candidate on its way to a verdict, and what is made of it on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpu_mcp_server.models.build import CandidateLanguage, CompileResult
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramProblem
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.concurrency import Slots
from gpu_mcp_server.services.hosts.host_connections import HostProbe


@dataclass(frozen=True)
class JudgeRequest:
    """One candidate on its way to a verdict."""

    attempt_id: str
    problem: Problem
    source: CandidateSource
    host: str
    probe: HostProbe
    device: str
    flags: tuple[str, ...]
    entry: str
    timing: TimingOptions
    progress: Progress | None
    slots: Slots | None
    began: float
    """On the monotonic clock."""
    key: str
    """Of the request, for the verdict to be kept under."""
    kind: Literal["evaluate", "confirm"] = "evaluate"
    background: bool = False
    """Whether it gives way to whoever else wants to be judged."""

    @property
    def program(self) -> ProgramProblem | None:
        """The problem's program, if it is one."""
        return self.problem.program

    @property
    def language(self) -> CandidateLanguage:
        """Return the language of the candidate."""
        return "program" if self.problem.program else self.source.language

    async def tell(self, message: str) -> None:
        """Say where it stands."""
        if self.progress is not None:
            await self.progress(message)

    def evaluation(self, status: str, **more: Any) -> Evaluation:
        """Return an evaluation without a verdict."""
        about: dict[str, Any] = {
            "attempt_id": self.attempt_id,
            "problem_id": self.problem.problem_id,
            "problem_hash": self.problem.content_hash,
            "language": self.language,
            "host": self.host,
        }
        return Evaluation.model_validate({"status": status, **about, **more})


@dataclass(frozen=True)
class BuildState:
    """A candidate that can be judged."""

    built: CompileResult | None
    """None of what is not compiled beforehand."""
    candidate: BuiltCandidate | None
    """None of a program."""
    said: Sequence[str] = ()
    """Of extensions that it has torch compile."""
    unbuilt: bool = False
    """Whether none of them compiled; it may go on without."""
    binding: str = ""
    """How an extension of torch is called."""
    binaries: Sequence[str] = ()
    """Artifacts of the extensions that it has torch compile."""
