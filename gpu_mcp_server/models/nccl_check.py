"""Results of checking a program that uses NCCL's device interface."""

from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel

NcclCheckStatus = Literal["passed", "failed", "noted", "skipped"]
Verdict = Literal["verified", "failed", "incomplete", "running"]


class NcclRunOptions(Model):
    """Options of starting a program and the stage up to which it is checked."""

    ranks: int = Field(default=2, ge=1, le=64)
    """GPUs, and processes where a launcher starts them."""
    launcher: Literal["self", "torchrun", "mpirun"] = "self"
    """`self`: one process, which starts its ranks or drives all GPUs itself."""
    arguments: list[str] = Field(default=[], max_length=50)
    until: Literal["static", "build", "run", "all"] = "all"
    """static: rules alone; build: and versions and compilers; run: and one plain run; all."""
    timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Of each run."""
    wait_s: float = Field(default=240.0, ge=0, le=600)
    """How long the call waits. The verification goes on: the same call again joins it."""
    host: str | None = None


class NcclCheck(Model):
    """One check and what it rests on."""

    name: str
    status: NcclCheckStatus
    """noted: it could not judge everything; skipped: it did not run, and the evidence says why."""
    evidence: str


class NcclTiming(Model):
    """Medians of one size, warmed, the slowest rank's."""

    collective: str
    size_bytes: int
    """The larger of what one rank sends and receives."""
    original_us: float
    """Host NCCL on plain memory."""
    stage_a_us: float
    """Host NCCL on registered windows."""
    device_us: float


class NcclProgramTimes(Model):
    """A user's program beside its original, whole runs in turn."""

    original_s: list[float] = []
    """Of each pair: from the first process's start to the last one's end, start-up of CUDA and NCCL included."""
    changed_s: list[float] = []
    not_measured: str = ""
    """Why there are no times."""


class NcclVerification(ResultModel):
    """All checks of one program."""

    verdict: Verdict
    """incomplete: nothing failed, but some checks that a proof needs did not run; running: call again to wait on."""
    possible: str
    """Which stages this host can run, and what would have to change for the others."""
    checks: list[NcclCheck]
    timings: list[NcclTiming] = []
    missing: list[str] = []
    """Checks that a proof needs and that did not run."""
    nccl: str | None = None
    """Header and runtime version."""
    host: str | None = None
    level: str | None = None
    attempt_id: str | None = None
    seconds: float | None = None
    log_artifact_id: str | None = None
    """What the programs printed, NCCL's own words included."""

    def summary(self) -> str:
        """Say the verdict, what failed, then each check on a line."""
        if self.verdict == "running":
            return f"running: {self.possible}"
        failed = [c.name for c in self.checks if c.status == "failed"]
        head = f"{self.verdict}" + (f": {', '.join(failed)}" if failed else "")
        head += f"; not run: {', '.join(self.missing)}" if self.missing else ""
        lines = [head, f"possible here: {self.possible}"]
        for status in ("failed", "noted", "skipped", "passed"):
            said: dict[str, list[str]] = {}
            for check in self.checks:
                if check.status == status:
                    said.setdefault(check.evidence, []).append(check.name)
            lines += [f"  {status} {', '.join(names)}: {evidence}" for evidence, names in said.items()]
        lines += [
            f"  {t.collective} {t.size_bytes} B: original {t.original_us:.1f} us, stage A {t.stage_a_us:.1f} us, "
            f"device {t.device_us:.1f} us"
            for t in self.timings
        ]
        about = [f"NCCL {self.nccl}" if self.nccl else "", f"host {self.host}" if self.host else ""]
        about += [f"attempt {self.attempt_id}" if self.attempt_id else ""]
        about += [f"log {self.log_artifact_id}" if self.log_artifact_id else ""]
        return "\n".join([*lines, ", ".join(a for a in about if a)]).rstrip()
