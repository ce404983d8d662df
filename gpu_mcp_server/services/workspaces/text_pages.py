"""Bytes as an agent can read them."""

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.workspace import FileContent

SHOWN_CHARACTERS = 6000
"""Results stay below 8,000 characters in all."""
BYTES_A_LINE = 32


def file_content(
    data: bytes,
    path: str,
    first_line: int = 1,
    max_lines: int = 200,
    *,
    workspace_id: str | None = None,
    artifact_id: str | None = None,
) -> FileContent:
    """Return lines of a text, or of a hexadecimal dump (32 bytes a line) when the bytes are not text.

    Raises:
        BadRequest: If the lines that are asked for do not exist.
    """
    if first_line < 1 or max_lines < 1:
        raise BadRequest("first_line and max_lines start at 1.", hint="Leave them out to read from the start.")
    lines, encoding = _lines(data)
    if first_line > max(len(lines), 1):
        raise BadRequest(f"{path!r} has {len(lines)} lines.", hint=f"Choose first_line between 1 and {len(lines)}.")
    shown: list[str] = []
    room = SHOWN_CHARACTERS
    for line in lines[first_line - 1 : first_line - 1 + max_lines]:
        if len(line) > room:
            if not shown:
                shown.append(f"{line[:room]} ... ({len(line) - room} characters of this line left out)")
            break
        shown.append(line)
        room -= len(line) + 1
    last_line = first_line - 1 + len(shown)
    return FileContent(
        path=path,
        size_bytes=len(data),
        first_line=first_line if shown else 0,
        last_line=last_line,
        total_lines=len(lines),
        text="\n".join(shown),
        encoding=encoding,
        left_out_lines=len(lines) - last_line or None,
        workspace_id=workspace_id,
        artifact_id=artifact_id,
    )


def _lines(data: bytes) -> tuple[list[str], str]:
    text: str | None = None
    if b"\0" not in data:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = None
    if text is None:
        starts = range(0, len(data), BYTES_A_LINE)
        return [f"{at:08x}  {data[at : at + BYTES_A_LINE].hex(' ', 4)}" for at in starts], "hex"
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines, "utf-8"
