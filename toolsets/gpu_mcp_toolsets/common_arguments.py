"""Arguments that several tools take, described once."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import CandidateLanguage, Language

Host = Annotated[str | None, Field(description="From gpu_status.")]
Source = Annotated[str | None, Field(description="Its text; or give `path`.")]
SourcePath = Annotated[str | None, Field(description="File: in workspace_id, else local.")]
SourceWorkspace = Annotated[str | None, Field(description="Where `path` lies.")]
CompiledLanguage = Annotated[Language | None, Field(description="Else by the suffix.")]
AnyLanguage = Annotated[CandidateLanguage | None, Field(description="Else by the file.")]
Flags = Annotated[tuple[str, ...], Field(description="-O3, -D, -std, -lm ...")]
Parent = Annotated[str | None, Field(description="An attempt_id.")]
Note = Annotated[str | None, Field(description="What you try.", max_length=500)]
Wait = Annotated[float, Field(description="Then a job_id.", ge=0, le=240)]
FirstLine = Annotated[int, Field(description="From 1.", ge=1)]
MaxLines = Annotated[int, Field(description="Lines.", ge=1, le=2000)]


def version_of(text: str | None) -> tuple[int, int, int] | None:
    """Read a version like 2.28.9.

    Raises:
        BadRequest: If it is none.
    """
    if text is None:
        return None
    parts = text.strip().lstrip("v").split(".")
    if len(parts) not in {2, 3} or not all(p.isdigit() for p in parts):
        raise BadRequest(f"{text!r} is no version.", hint="Like 2.28.9.")
    return int(parts[0]), int(parts[1]), int(parts[2]) if len(parts) == 3 else 0
