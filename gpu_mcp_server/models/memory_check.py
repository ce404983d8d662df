"""Findings of a memory checker."""

from typing import Literal

from gpu_mcp_server.models._base import Model, ResultModel

CheckTool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]


class MemoryFinding(Model):
    """One mistake of a program, however often it happened."""

    kind: Literal["invalid access", "race", "uninitialized", "barrier", "api error", "leak", "other"]
    message: str
    kernel: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None
    """The line's text, when the workspace has the file."""
    count: int = 1
    """How many were printed; threads, hazards or calls."""
    thread: str | None = None
    """The first one that did it: thread (x,y,z) block (x,y,z)."""
    detail: str | None = None
    """How far beyond which allocation; the other access of a race."""
    other_line: int | None = None
    """Of the other access of a race."""
    called_from: str | None = None
    """Frame of the user's code on the device, or of the host."""

    def line_text(self) -> str:
        """Say it on one or two lines."""
        where = f"{self.file}:{self.line}" if self.file and self.line else (self.file or "")
        text = ": ".join(filter(None, [where, self.message])) + (f" ({self.count} times)" if self.count > 1 else "")
        text += f" in {self.kernel}" if self.kernel else ""
        for extra in (self.source and f"`{self.source}`", self.thread, self.detail, self.called_from):
            text += f"\n    {extra}" if extra else ""
        return text


class CheckReport(Model):
    """Findings parsed from the output of one tool."""

    findings: list[MemoryFinding] = []
    errors: int | None = None
    """As the tool itself counts; absent when it did not come to its end."""
    warnings: int | None = None
    not_printed: int | None = None
    """Errors beyond the print limit."""
    troubles: list[str] = []
    """Why the tool itself did not work."""


class MemoryCheck(ResultModel):
    """Result of checking a program."""

    status: str
    """clean, findings, failed (the program, without findings), timeout, oom, not_checked, running."""
    tool: CheckTool
    checker: str | None = None
    """Name and version."""
    findings: list[MemoryFinding] = []
    findings_left_out: int | None = None
    errors: int | None = None
    note: str | None = None
    next: str | None = None
    job_id: str | None = None
    attempt_id: str | None = None
    host: str
    seconds: float | None = None
    sandbox: str | None = None
    log_artifact_id: str | None = None
    output: str = ""
    """The end of what the program printed."""

    def summary(self) -> str:
        """Say whether it is clean, then the findings."""
        head = f"{self.tool}: {self.status}"
        head += f", {self.errors} errors" if self.errors else ""
        head += f" in {self.seconds:.1f} s" if self.seconds is not None else ""
        lines = [head, *(f.line_text() for f in self.findings)]
        if self.findings_left_out:
            lines.append(f"({self.findings_left_out} more; read_artifact {self.log_artifact_id})")
        lines += [f"note: {self.note}"] if self.note else []
        lines += [f"next: {self.next}"] if self.next else []
        if self.output and self.status not in ("clean", "findings"):
            lines.append(f"--- output\n{self.output}")
        about = {"job": self.job_id, "attempt": self.attempt_id, "log": self.log_artifact_id}
        lines.append("; ".join(f"{k} {v}" for k, v in about.items() if v))
        return "\n".join(line for line in lines if line)
