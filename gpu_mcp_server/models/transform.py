"""Result of transforming an NCCL program."""

from typing import Literal

from gpu_mcp_server.models._base import ResultModel

Stage = Literal["infrastructure", "replace", "mark", "warmup"]
Api = Literal["auto", "lsa", "gin"]
Library = Literal["nccl", "rccl"]


class TransformResult(ResultModel):
    """New files and a diff; the given files stay unchanged."""

    status: str
    """done, partial (some sites are left), unchanged, nothing to transform, or needs the agent"""
    headline: str
    api: str
    """lsa or gin: what the generated kernels use"""
    done: dict[str, list[str]] = {}
    """What each stage did."""
    needs_agent: list[str] = []
    """What the program cannot do, and why."""
    advice: list[str] = []
    """How to do it, with the API of the installed NCCL."""
    see: list[str] = []
    """Entries of the installed NCCL that it rests on."""
    main: str | None = None
    """The new main file."""
    files: list[str] = []
    workspace_id: str | None = None
    """Holds the new files beside the program's other ones, and transform.diff."""
    build: str | None = None
    """A line that compiles it."""
    unverified: list[str] = []
    """What no machine has confirmed here."""
    diff: str = ""

    def summary(self) -> str:
        """Say what was done, what is left, and the diff."""
        lines = [self.headline]
        nothing = "nothing was done" if self.needs_agent else "nothing to do"
        lines += [f"{stage}: {'; '.join(done) or nothing}" for stage, done in self.done.items()]
        lines += [f"needs the agent: {reason}" for reason in self.needs_agent]
        lines += self.advice
        lines += [f"see {', '.join(self.see)}"] if self.see else []
        if self.workspace_id:
            lines.append(f"workspace {self.workspace_id}: {', '.join(self.files)}")
        lines += [f"unverified: {u}" for u in self.unverified]
        if self.build:
            lines.append(self.build)
        if self.diff:
            lines += ["", self.diff]
        return "\n".join(lines)
