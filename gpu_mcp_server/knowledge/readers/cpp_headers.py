"""Headers of C++ template libraries (CUB, Thrust, libcu++, cooperative groups): one entry for each class and function.

Methods are entries by their full name, `cub::BlockReduce::Sum`; what is private or a namespace's detail is not read.
"""

import re
from dataclasses import dataclass, field, replace

from gpu_mcp_server.knowledge.readers import doxygen
from gpu_mcp_server.knowledge.readers.declarations import SIGNATURE_CHARS
from gpu_mcp_server.knowledge.readers.entries import ENTRY_CHARS, Entry

LISTED_OVERLOADS = 6
LISTED_MEMBERS = 40
LONGEST_OPEN = 20_000
"""Characters without a brace or semicolon after which a declaration is given up."""

_LEXEME = re.compile(  # a comment that nobody closed lasts to the end, as for a compiler
    r"/\*.*?(?:\*/|\Z)|(?://[^\n]*\n?[ \t]*)+|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*|[{};]|[^/\"'{};\n\#]+|.",
    re.DOTALL | re.MULTILINE,
)
_TEMPLATE = re.compile(r"\btemplate\s*<(?:[^<>]|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)*>\s*")
_RECORD = re.compile(
    r"\b(class|struct|union|enum(?:\s+class)?)\s+(?:_\w+\s+|alignas\([^)]*\)\s*)*([A-Za-z]\w*)\s*(?::[^:]|$|final)"
)
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]*)\s*$")
_FUNCTION = re.compile(r"(?<!\w)([A-Za-z_~]\w*|operator\s*\S{1,3})\s*\(")
_ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")
_HIDDEN = re.compile(r"^_|detail|internal|impl|anonymous", re.IGNORECASE)
_NOT_FUNCTIONS = {
    "if", "for", "while", "switch", "return", "sizeof", "static_assert", "decltype", "requires", "noexcept", "alignas",
    "defined", "explicit", "operator",
}  # fmt: skip
_ALONE = re.compile(r"\s*[A-Z][A-Z0-9_]*(?:\([^)]*\))?\s*")
"""A macro that stands for itself, as those that open namespaces."""
_MACRO = re.compile(
    r"\b(?:_CCCL\w*|_CG_\w+|CUB_\w+|THRUST_\w+|__host__|__device__|__forceinline__|inline|friend|_NV\w+)\b"
)
_RST = re.compile(
    r"@(?:end)?rst\b|@smem\w+(?:\{\w*\})?|@overload\b|@\w+collective\{\w+\}|\\(?:end)?verbatim\b[^\n]*"
    r"|@(?:rowmajor|granularity|blocked|striped|warpstriped|offset\w*|devicestorage\w*|cdp\w*)"
    r"|^\s*\.\. versionadded::[^\n]*\n(?:[^\n]*Toolkit[^\n]*)?",
    re.MULTILINE,
)
_TAG = re.compile(r"</?(?:tt|p|b|i|em|br|a|code|ul|li|pre)\b[^<>\n]*>")
_HIDE, _SHOW = str.maketrans("<>", "\x01\x02"), str.maketrans("\x01\x02", "<>")
"""Templates and includes in examples look like HTML."""
_ROLE = re.compile(r":[\w:-]{1,80}:`~?([^`<]*?)(?:\s*<[^`]*>)?`")


@dataclass
class _Scope:
    """Scope that a brace opened."""

    kind: str
    """`namespace`, `record` or `body`."""
    name: str = ""
    hidden: bool = False
    comment: str = ""
    first_line: int = 0
    members: dict[str, None] = field(default_factory=dict[str, None])


class Classes:
    """Collects the entries of one library; overloads become one."""

    def __init__(self, *, undocumented: bool = False) -> None:
        """Start empty.

        Args:
            undocumented: Whether functions without a comment are entries, too.
        """
        self._undocumented = undocumented
        self._found: dict[str, Entry] = {}

    @property
    def entries(self) -> list[Entry]:
        """Return the entries found so far."""
        return list(self._found.values())

    def read(self, text: str, place: str, namespace: str) -> None:
        """Add what one header declares in a namespace."""
        _Reader(self, place, namespace).read(text)

    def add(self, kind: str, name: str, comment: str, shown: str, place: str, lines: tuple[int, int]) -> None:
        """Add a declaration; the first that says something gives the text, all their shapes are listed."""
        said = plain(comment)[:ENTRY_CHARS]
        elder = self._found.get(name)
        if elder is None:
            if said or self._undocumented:
                self._found[name] = Entry(kind, (name,), name, said, shown, place, *lines)
            return
        shapes = elder.signature.split("\n")
        if shown and shown not in shapes and len(shapes) < LISTED_OVERLOADS and len(elder.signature) < SIGNATURE_CHARS:
            shapes.append(shown)
        self._found[name] = replace(elder, text=elder.text or said, signature="\n".join(filter(None, shapes)))

    def list_members(self, name: str, members: list[str]) -> None:
        """Add the methods of a class to its entry, as text and as names that it answers to."""
        entry = self._found.get(name)
        if entry is not None and members and "\nMembers: " not in entry.text:
            listed = f"{entry.text}\n\nMembers: {', '.join(members[:LISTED_MEMBERS])}".strip()
            names = tuple(f"{name}::{member}" for member in members[:LISTED_MEMBERS])
            self._found[name] = replace(entry, text=listed, symbols=(*entry.symbols, *names))


class _Reader:
    """The way through one header: scopes that are open, the comment that is pending."""

    def __init__(self, classes: Classes, place: str, namespace: str) -> None:
        self._classes, self._place, self._namespace = classes, place, namespace
        self._scopes: list[_Scope] = []
        self._open, self._comment = "", ""
        self._line = self._first = 1

    def read(self, text: str) -> None:
        for match in _LEXEME.finditer(text):
            lexeme = match.group()
            if lexeme.startswith(("/*", "//")):
                self._take_comment(lexeme)
            elif lexeme.lstrip(" \t").startswith("#"):
                self._open = self._open if self._inside_body() else ""
            elif lexeme == "{":
                self._take_opening()
            elif lexeme == "}":
                self._take_closing()
            elif lexeme == ";":
                self._declared("")
            elif not self._inside_body():
                self._take_words(lexeme)
            self._line += lexeme.count("\n")

    def _inside_body(self) -> bool:
        return bool(self._scopes) and self._scopes[-1].kind == "body"

    def _take_comment(self, lexeme: str) -> None:
        if _ALONE.fullmatch(self._open):
            self._open = ""
        if self._inside_body() or self._open.strip() or not lexeme.startswith(("/**", "/*!", "///", "//!")):
            return
        lines = lexeme.splitlines() if lexeme[1] == "/" else [lexeme]
        said = "\n".join(doxygen.strip_comment(line.strip()) for line in lines)
        if re.search(r"[\\@](?:file|addtogroup|defgroup|cond|name|\{|\})", said) and "@rst" not in said:
            return
        self._comment, self._first = said, self._line

    def _take_words(self, lexeme: str) -> None:
        if lexeme.strip() and not self._open.strip() and not self._comment:
            self._first = self._line
        self._open += lexeme
        access = list(_ACCESS.finditer(self._open))
        if access and self._scopes:
            self._scopes[-1].hidden = access[-1].group(1) != "public"
            self._open = self._open[access[-1].end() :]
        if len(self._open) > LONGEST_OPEN:
            self._open = ""

    def _take_opening(self) -> None:
        if self._inside_body():
            self._scopes.append(_Scope("body"))
            return
        bare = " ".join(_TEMPLATE.sub("", self._open).split())
        namespace, record = _NAMESPACE.search(bare), _RECORD.search(bare)
        if namespace or bare.endswith("namespace"):
            name = namespace.group(1) if namespace else ""
            self._scopes.append(_Scope("namespace", hidden=bool(_HIDDEN.search(name or "anonymous"))))
        elif record and "(" not in bare[: record.start()] and not record.group(1).startswith("enum"):
            scope = _Scope("record", record.group(2), hidden=record.group(1) == "class")
            self._record(scope.name, bare)
            self._scopes.append(scope)
        else:
            self._declared("{")
            self._scopes.append(_Scope("body"))
        self._open, self._comment = "", ""

    def _take_closing(self) -> None:
        if not self._scopes:
            return
        scope = self._scopes.pop()
        if scope.kind == "record" and scope.members:
            self._classes.list_members(self._name(scope.name), list(scope.members))
        self._open, self._comment = "", ""

    def _visible(self) -> bool:
        return all(s.kind != "body" and not s.hidden for s in self._scopes) and not any(
            _HIDDEN.search(s.name) for s in self._scopes if s.kind == "record"
        )

    def _name(self, own: str) -> str:
        return "::".join([self._namespace, *(s.name for s in self._scopes if s.kind == "record"), own])

    def _record(self, name: str, bare: str) -> None:
        if self._visible() and not _HIDDEN.search(name) and (self._comment or not self._scopes_of_records()):
            shown = _clean(bare)
            self._classes.add("type", self._name(name), self._comment, shown, self._place, (self._first, self._line))

    def _scopes_of_records(self) -> bool:
        return any(scope.kind == "record" for scope in self._scopes)

    def _declared(self, end: str) -> None:
        """Take a declaration that a semicolon or a body ends."""
        if self._inside_body():
            return
        text, comment = self._open, self._comment
        self._open, self._comment = "", ""
        bare = " ".join(_TEMPLATE.sub("", text).split())
        if not self._visible() or bare.startswith(
            ("using", "typedef", "return", "static_assert", "namespace", "friend")
        ):
            return
        found = next((m for m in _FUNCTION.finditer(_MACRO.sub("", bare)) if m.group(1) not in _NOT_FUNCTIONS), None)
        record = next((s for s in reversed(self._scopes) if s.kind == "record"), None)
        if found is None or "=" in _MACRO.sub("", bare)[: found.start()]:
            return
        own = found.group(1)
        if own.startswith(("operator", "_", "~")) or (record is not None and own == record.name) or own.isupper():
            return
        if record is not None:
            record.members[own] = None
        if comment or record is None:
            shown = _clean(text.split("\n{")[0])
            self._classes.add("function", self._name(own), comment, shown, self._place, (self._first, self._line))


def _clean(declaration: str) -> str:
    """Return a declaration on one line, without attributes and export macros."""
    line = " ".join(_MACRO.sub("", re.sub(r"\[\[[^\]]*\]\]", "", declaration)).split())
    line = re.sub(r"\s*\)\s*:\s*\w+\s*[({].*$", ")", line)
    return re.sub(r"\(\s+\)", "()", line)[:400].strip()


def plain(comment: str) -> str:
    """Return a comment in reStructuredText within Doxygen as plain text."""
    text = _ROLE.sub(r"\1", _RST.sub("", comment))
    text = re.sub(
        r"^\s*\.\. +(?:code-block|literalinclude|note|warning|attention)::[^\n]*", "", text, flags=re.MULTILINE
    )
    text = re.sub(r"``([^`]*)``", r"\1", re.sub(r"^[ \t]*[+=~^-]{5,}[ \t]*$", "", text, flags=re.MULTILINE))
    text = re.sub(r"[\\@]tparam\s+", "Template parameter: ", text)
    text = re.sub(r"^[ \t]*-[ \t]*$\n?", "", _TAG.sub("", text), flags=re.MULTILINE).replace("\\ ", "")
    text = doxygen.plain(text.translate(_HIDE)).translate(_SHOW)
    return re.sub(r"\n\s*\n\s*\n+", "\n\n", text).strip()
