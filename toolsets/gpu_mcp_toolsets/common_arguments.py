"""Arguments that several tools take, described once."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import CandidateLanguage, Language
from gpu_mcp_server.models.transform import Library

Host = Annotated[str | None, Field(description="Host of gpu_status; absent: any.")]
Source = Annotated[str | None, Field(description="Text of the source; or give path.")]
SourcePath = Annotated[str | None, Field(description="Source file: of workspace_id, else on this machine.")]
SourceWorkspace = Annotated[str | None, Field(description="Workspace in which path lies.")]
CompiledLanguage = Annotated[Language | None, Field(description="Absent: by the file's suffix.")]
AnyLanguage = Annotated[CandidateLanguage | None, Field(description="Absent: by suffix and content.")]
Flags = Annotated[tuple[str, ...], Field(description="Compiler flags: -O3, -DN=4, -std=c++20, -lm.")]
Parent = Annotated[str | None, Field(description="attempt_id that this one improves.")]
Offset = Annotated[int, Field(description="Skip so many rows.", ge=0)]
Note = Annotated[str | None, Field(description="What this attempt tries.", max_length=500)]
Wait = Annotated[float, Field(description="Seconds to wait; then you get a job_id.", ge=0, le=240)]
FirstLine = Annotated[int, Field(description="First line shown, from 1.", ge=1)]
MaxLines = Annotated[int, Field(description="Most lines to show.", ge=1, le=2000)]

RCCL = "rccl-"
"""Before a version of RCCL."""


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


def library_version(text: str | None) -> tuple[Library, tuple[int, int, int] | None]:
    """Read a version of NCCL, like 2.28.9, or of RCCL, like rccl-2.30.4.

    Raises:
        BadRequest: If it is none.
    """
    number = (text or "").strip().lower().removeprefix(RCCL)
    library: Library = "rccl" if (text or "").strip().lower().startswith(RCCL) else "nccl"
    return library, version_of(None if text is None else number)
