"""Result of porting CUDA to another language."""

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.build import CompileResult


class PortFinding(Model):
    """A construct that a person has to look at."""

    kind: str
    count: int
    places: list[str]
    """FILE:LINE, the first 20."""
    advice: str

    def line_text(self) -> str:
        """Say it on one line."""
        more = f" and {self.count - len(self.places)} more" if self.count > len(self.places) else ""
        return f"{self.kind} ({', '.join(self.places)}{more}): {self.advice}"


class PortResult(ResultModel):
    """A port: converted files, what was not converted, what to look at, and whether it compiles."""

    target: str
    converter: str | None = None
    """Absent when there is only a checklist."""
    workspace_id: str | None = None
    """Where the converted files lie."""
    files: list[str] = []
    """Converted, at most 50."""
    left_over: dict[str, list[str]] = {}
    """Names of CUDA that are still there, with their places."""
    findings: list[PortFinding] = []
    builds: list[CompileResult] = []
    """Each source compiled as it now is, at most 4."""
    builds_left_out: int | None = None
    converter_said: list[str] = []
    note: str | None = None

    def summary(self) -> str:
        """Say what compiles, what is left, what to look at."""
        lines = [f"port to {self.target}" + (f" by {self.converter}" if self.converter else ": a checklist")]
        if self.workspace_id:
            lines.append(f"workspace {self.workspace_id}: {', '.join(self.files)}")
        for build in self.builds:
            file = next((word for word in reversed(build.command) if word.endswith(".hip")), "")
            lines += [f"-- {file}", *build.summary().splitlines()[:12]]
        if self.builds_left_out:
            lines.append(f"({self.builds_left_out} more sources were not compiled)")
        if self.left_over:
            lines.append("not converted: " + ", ".join(f"{n} ({', '.join(p)})" for n, p in self.left_over.items()))
        lines += [f.line_text() for f in self.findings]
        lines += self.converter_said
        if self.note:
            lines.append(f"note: {self.note}")
        return "\n".join(lines)
