"""Progress of a program on its way from host-driven collectives to the device."""

from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.nccl_check import NcclRunOptions
from gpu_mcp_server.models.transform import Api

StepStatus = Literal["done", "incomplete", "failed", "skipped"]


class NcclPipelineOptions(NcclRunOptions):
    """Options of taking a program to the device."""

    api: Api = "auto"
    together: bool = False
    """Both stages at once, for simple programs; otherwise windows first, verified, then kernels."""
    again: bool = False
    """Do every step again, also those whose inputs are as they were."""


class NcclStep(Model):
    """One step, recorded as an attempt."""

    name: str
    status: StepStatus
    """incomplete: nothing failed, but a proof lacks checks; skipped: as the reason says."""
    reason: str
    seconds: float = 0.0
    attempt_id: str | None = None
    at: str = ""
    """When it was done, ISO 8601, UTC."""
    key: str = ""
    """Of everything that it depends on: a step whose key is as it was is not done again."""
    files: list[str] = []
    """That it made, below the folder."""
    reused: bool = False
    """It was done by an earlier run."""


class NcclPipeline(ResultModel):
    """All steps of one program."""

    status: Literal["verified", "incomplete", "failed", "nothing to transform"]
    headline: str
    steps: list[NcclStep]
    folder: str
    main: str | None = None
    """The program of the last stage that was made, below the folder."""
    possible: str = ""
    """Which stages this host can run."""
    needs_agent: list[str] = Field(default=[])
    """What the program cannot do by itself: for the recipe."""
    advice: list[str] = Field(default=[])

    def summary(self) -> str:
        """Say how far it went, then each step."""
        lines = [f"{self.status}: {self.headline}"]
        for step in self.steps:
            again = ", done before" if step.reused else ""
            about = f" ({step.seconds:.1f} s{again})" if step.seconds or again else ""
            lines.append(f"  {step.status} {step.name}{about}: {step.reason}")
        lines += [f"possible here: {self.possible}"] if self.possible else []
        lines += [f"needs the agent: {reason}" for reason in self.needs_agent]
        lines += self.advice
        lines.append(f"files: {self.folder}" + (f", program {self.main}" if self.main else ""))
        return "\n".join(lines)
