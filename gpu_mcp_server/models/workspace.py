"""Workspaces: named sets of files that jobs run in."""

from gpu_mcp_server.models._base import Model, ResultModel


class WorkspaceFile(Model):
    """One file of a workspace."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool = False


class WorkspaceListing(ResultModel):
    """Files of a workspace."""

    workspace_id: str
    files: list[WorkspaceFile]
    files_left_out: int | None = None
    """How many more there are; narrow with `prefix`."""
    written: list[str] | None = None
    """Paths written by this call."""

    def summary(self) -> str:
        """List the files."""
        lines = [f"workspace {self.workspace_id}: {len(self.files)} file{'s' * (len(self.files) != 1)}"]
        if self.written is not None:
            lines.append("written: " + ", ".join(self.written))
        lines += [f"{f.size_bytes:>9} {f.path}" for f in self.files]
        if self.files_left_out:
            lines.append(f"({self.files_left_out} more; narrow with prefix)")
        if not self.files:
            lines.append("nothing here begins so; list_files without prefix shows all, write_files adds")
        return "\n".join(lines)


class FileContent(ResultModel):
    """Lines of a text file, or bytes as hexadecimal when it is not text."""

    path: str
    size_bytes: int
    first_line: int
    """1-based number of the first line shown."""
    last_line: int
    total_lines: int
    text: str
    encoding: str = "utf-8"
    """`hex` when the bytes are not text."""
    left_out_lines: int | None = None
    workspace_id: str | None = None
    artifact_id: str | None = None

    def summary(self) -> str:
        """Show the lines."""
        where = self.workspace_id or self.artifact_id or ""
        shown = f"lines {self.first_line}-{self.last_line} of {self.total_lines}"
        text = f"{where} {self.path} {shown} ({self.size_bytes} bytes, {self.encoding})\n{self.text}"
        if self.left_out_lines:
            text += f"\n({self.left_out_lines} lines left out; continue with first_line={self.last_line + 1})"
        return text
