"""Edits of a syntax tree: byte ranges of nodes, collected and applied at once."""

from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.syntax import ParsedSource


@dataclass(frozen=True)
class TextEdit:
    """Bytes from `start` to `end` become `text`."""

    start: int
    end: int
    text: str
    order: int


class EditConflict(ValueError):
    """Two edits want the same bytes."""


class Edits:
    """Edits of one file."""

    def __init__(self, source: ParsedSource) -> None:
        """Start with none."""
        self.source = source
        self.edits: list[TextEdit] = []

    def replace(self, node: Node, text: str) -> None:
        """Put a text in a node's place."""
        self._add(node.start_byte, node.end_byte, text)

    def replace_range(self, first: Node, last: Node, text: str) -> None:
        """Put a text in the place of neighbours, from the first to the last."""
        self._add(first.start_byte, last.end_byte, text)

    def insert_before(self, node: Node, text: str) -> None:
        """Insert before a node; later calls come after earlier ones.

        Before a statement that `#if` splits means before the `#if`: no branch of it has the insertion alone.
        """
        spans = [s for s in self.source.split_spans if s[0] <= node.start_byte < s[1]]
        at = min((s[0] for s in spans), default=node.start_byte)
        self._add(at, at, text if at == node.start_byte else text.rstrip(" \t"))

    def insert_after(self, node: Node, text: str) -> None:
        """Insert after a node; later calls come after earlier ones."""
        self._add(node.end_byte, node.end_byte, text)

    def indent(self, node: Node) -> str:
        """Return the white space that a node's line starts with."""
        start = self.source.data.rfind(b"\n", 0, node.start_byte) + 1
        line = self.source.data[start : node.start_byte].decode("utf-8", "replace")
        return line[: len(line) - len(line.lstrip())]

    def apply(self) -> str:
        """Return the edited text.

        Raises:
            EditConflict: If edits overlap; nothing is half done.
        """
        data, out, at = self.source.data, bytearray(), 0
        for edit in sorted(self.edits, key=lambda e: (e.start, e.end, e.order)):
            if edit.start < at:
                raise EditConflict(f"{self.source.path}: two edits of byte {edit.start}")
            out += data[at : edit.start]
            out += edit.text.encode("utf-8", "surrogateescape")
            at = edit.end
        out += data[at:]
        return out.decode("utf-8", "surrogateescape")

    def _add(self, start: int, end: int, text: str) -> None:
        self.edits.append(TextEdit(start, end, text, len(self.edits)))
