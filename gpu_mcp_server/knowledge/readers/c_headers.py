"""Headers of C and C++ libraries: one entry for each function, type, documented enumerator and macro.

Written for what CUDA's, NCCL's, HIP's, rocBLAS's and Open MPI's headers look like. Not a compiler: what it does not
understand it leaves out.
"""

import re
from collections.abc import Callable

from gpu_mcp_server.knowledge.readers import doxygen
from gpu_mcp_server.knowledge.readers.blas_names import blas_meaning
from gpu_mcp_server.knowledge.readers.declarations import (
    SIGNATURE_CHARS,
    declared_names,
    members,
    record_text,
    signature,
)
from gpu_mcp_server.knowledge.readers.entries import ENTRY_CHARS, Entry

LONGEST_DECLARATION = 200_000
"""Characters after which a declaration that does not end is given up: braces that do not match."""
TOLD_WORDS = 10
"""Words of a comment that make an enumerator an entry of its own; those of error enumerations always are."""
LISTED_OVERLOADS = 12

# A comment that nobody closed lasts to the end, as for a compiler; else each beginning would look for an end.
_LEXEME = re.compile(
    r"/\*.*?(?:\*/|\Z)|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*\#(?:/\*.*?(?:\*/|\Z)|[^\n\\]|\\\n|\\.)*|[{};]|\n|[^/\"'{};\n\#]+|.",
    re.DOTALL | re.MULTILINE,
)
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?[ \t]*(.*)", re.DOTALL)
_ERRORS = re.compile(r"error|status|result", re.IGNORECASE)
_GROUPING = re.compile(r"[\\@][{}]")
_SCOPE = re.compile(r"extern\s+\"C\"\s*$|(?:inline\s+)?namespace\b")


class Headers:
    """Collects the entries of one library from its headers; overloads and repeated declarations become one."""

    def __init__(self, *, skip: str = "", any_comment: bool = False) -> None:
        """Start empty.

        Args:
            skip: Pattern of names that are left out.
            any_comment: Whether plain comments document, too, besides Doxygen's.
        """
        self._skip: Callable[[str], object] = re.compile(skip).search if skip else lambda _: None
        self._any_comment = any_comment
        self._found: dict[tuple[str, str], Entry] = {}

    @property
    def entries(self) -> list[Entry]:
        """Return the entries found so far."""
        return list(self._found.values())

    def read(self, text: str, place: str) -> None:
        """Add what one header declares."""
        _Reader(self, text, place).read()

    def wanted_comment(self, comment: str) -> bool:
        """Return whether a comment documents what follows it."""
        if not self._any_comment and not comment.startswith(("/**", "/*!", "///", "//!")):
            return False
        if _GROUPING.search(comment) and "brief" not in comment:
            return False
        return len(comment) > 8 and not re.search(r"Copyright|NOTICE TO LICENSEE|SPDX-License", comment)

    def add_declaration(self, text: str, comment: str, place: str, first_line: int, last_line: int) -> None:
        """Add a declaration with the comment before it."""
        kind, names = declared_names(text)
        names = [name for name in names if not self._skip(name)]
        if kind is None or not names:
            return
        said = doxygen.plain(comment)
        if kind == "function":
            aliases = [names[0][:-3]] if names[0].endswith("_v2") else []
            self._add_function(names + aliases, signature(text), said, place, first_line, last_line)
            return
        inside = members(text) if kind == "enum" else []
        symbols = tuple(dict.fromkeys([*names, *(member.name for member in inside)]))
        whole = f"{said}\n{record_text(text)}".strip()[:ENTRY_CHARS]
        self._add(Entry(kind, symbols, names[0], whole, "", place, first_line, last_line))
        errors = bool(_ERRORS.search(" ".join(names)))
        for member in inside:
            if len(member.comment.split()) >= TOLD_WORDS or errors:
                value = member.value if errors else None
                written = member.written or ("" if member.value is None else str(member.value))
                shown = f"{member.name} = {written}" if written else member.name
                title = f"{member.name} ({names[0]})"
                told = member.comment or f"A value of {names[0]}. {said}".strip()
                self._add(
                    Entry(
                        *("enumerator", (member.name,), title, told, shown, place, first_line, last_line),
                        value=value,
                        group=names[0],
                    )
                )

    def add_macro(self, line: str, comment: str, place: str, line_number: int) -> None:
        """Add a `#define` with its comment."""
        found = _DEFINE.match(line)
        if found is None or not comment or self._skip(found.group(1)):
            return
        value = " ".join(re.sub(r"/\*.*?(?:\*/|\Z)|//.*|\\\n", " ", found.group(3), flags=re.DOTALL).split())[:120]
        shown = f"#define {found.group(1)}{found.group(2) or ''} {value}".strip()
        said = doxygen.plain(comment)
        self._add(Entry("macro", (found.group(1),), found.group(1), said, shown, place, line_number, line_number))

    def _add_function(
        self, names: list[str], shown: str, said: str, place: str, first_line: int, last_line: int
    ) -> None:
        elder = self._found.get((names[0], "function"))
        if elder is None:
            said = said or blas_meaning(names[0])
            self._add(
                Entry("function", tuple(names), names[0], said[:ENTRY_CHARS], shown, place, first_line, last_line)
            )
            return
        shapes = elder.signature.split("\n")
        if shown not in shapes and len(shapes) < LISTED_OVERLOADS and len(elder.signature) < SIGNATURE_CHARS:
            shapes.append(shown)
        text, where = (elder.text, (elder.place, elder.first_line, elder.last_line))
        if said and not elder.text:
            text, where = said, (place, first_line, last_line)
        self._found[names[0], "function"] = Entry(
            "function", elder.symbols, elder.title, text, "\n".join(shapes), *where
        )

    def _add(self, entry: Entry) -> None:
        elder = self._found.get((entry.name, entry.kind))
        if elder is None or len(entry.text) > len(elder.text):
            self._found[entry.name, entry.kind] = entry


class _Reader:
    """The way through one header: which comment is pending, which declaration is open."""

    def __init__(self, headers: Headers, text: str, place: str) -> None:
        self._headers, self._text, self._place = headers, text, place
        self._open: str = ""
        self._depth = 0
        self._first = self._line = 1
        self._comment, self._comment_line, self._comment_end = "", 0, 0
        self._of_lines = False

    def read(self) -> None:
        for match in _LEXEME.finditer(self._text):
            lexeme = match.group()
            if lexeme.startswith(("/*", "//")):
                self._take_comment(lexeme)
            elif lexeme.lstrip(" \t").startswith("#"):
                self._take_directive(lexeme)
            elif lexeme == "{":
                self._take_opening()
            elif lexeme == "}":
                self._take_closing()
            elif lexeme == ";":
                self._open += lexeme
                if self._depth == 0:
                    self._close()
            else:
                if lexeme.strip() and not self._open.strip():
                    self._first = self._line
                if lexeme != "\n" or self._open:
                    self._open += lexeme
            self._line += lexeme.count("\n")
            if len(self._open) > LONGEST_DECLARATION:
                self._open, self._depth = "", 0

    def _take_comment(self, lexeme: str) -> None:
        if self._depth or self._open.strip():
            self._open += lexeme
        elif self._headers.wanted_comment(lexeme):
            said = doxygen.strip_comment(lexeme)
            lines = lexeme.startswith("//")
            if lines and self._of_lines and self._comment:
                self._comment += "\n" + said
            else:
                self._comment, self._comment_line = said, self._line
            self._of_lines = lines
            self._comment_end = self._line + lexeme.count("\n")

    def _take_directive(self, lexeme: str) -> None:
        if self._depth or self._open.strip():
            return
        trailing = re.search(r"/\*\*<(.*?)\*/", lexeme, re.DOTALL)
        if trailing:
            self._headers.add_macro(lexeme, doxygen.strip_comment(f"/**{trailing.group(1)}*/"), self._place, self._line)
        elif self._comment and self._line - self._comment_end <= 1 and _DEFINE.match(lexeme):
            self._headers.add_macro(lexeme, self._comment, self._place, self._line)
            self._comment = ""

    def _take_opening(self) -> None:
        if self._depth == 0 and _SCOPE.match(self._open.strip()):
            self._open = ""
        else:
            self._open += "{"
            self._depth += 1

    def _take_closing(self) -> None:
        if self._depth == 0:
            self._open = ""
            return
        self._depth -= 1
        self._open += "}"
        if self._depth == 0 and declared_names(self._open)[0] in ("function", None):
            self._close()

    def _close(self) -> None:
        first = self._comment_line if self._comment else self._first
        self._headers.add_declaration(self._open, self._comment, self._place, first, self._line)
        self._open, self._comment, self._of_lines = "", "", False
