"""Result of building a whole project."""

from typing import Literal

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.build import Diagnostic, diagnostic_lines
from gpu_mcp_server.models.job import OutputRef, TestReport


class Phase(Model):
    """One phase of a build."""

    name: str
    """configure, build or test."""
    seconds: float
    exit_code: int


class ProjectBuild(ResultModel):
    """Result of running a build system in a workspace."""

    status: Literal["ok", "failed", "timeout", "oom", "broken"]
    system: str
    host: str
    workspace_id: str
    job_id: str
    stage: str | None = None
    """The phase that failed."""
    phases: list[Phase] = []
    seconds: float | None = None
    cached: bool = False
    """Whether the same files were built in the same way before; then nothing was run. Tests always are."""
    diagnostics: list[Diagnostic] = []
    """At most 10 over all files, errors first, duplicates removed."""
    diagnostics_left_out: int | None = None
    tests: TestReport | None = None
    products: list[OutputRef] = []
    """Programs, libraries and reports; they are files of the workspace as well."""
    log_artifact_id: str | None = None
    level: str | None = None
    note: str | None = None

    def summary(self) -> str:
        """Say which phase failed, the messages, the tests, what there is now."""
        head = f"build {self.status}: {self.system} in {self.workspace_id}"
        head += f", {self.stage} failed" if self.stage else ""
        head += " (as before, from the cache)" if self.cached else ""
        lines = [head]
        if self.phases:
            lines.append(
                "phases: " + ", ".join(f"{p.name} {p.seconds:.1f} s (exit {p.exit_code})" for p in self.phases)
            )
        lines += diagnostic_lines(self.diagnostics)
        if self.diagnostics_left_out:
            lines.append(f"({self.diagnostics_left_out} more messages; read_artifact {self.log_artifact_id})")
        if self.tests:
            lines += self.tests.lines()
        if self.products:
            shown = ", ".join(f"{p.path} ({p.size_bytes} B, {p.artifact_id})" for p in self.products[:20])
            lines.append(f"made: {shown}")
        if self.note:
            lines.append(f"note: {self.note}")
        if self.log_artifact_id:
            lines.append(f"log: {self.log_artifact_id}")
        return "\n".join(lines)
