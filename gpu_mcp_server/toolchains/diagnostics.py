"""Messages of gcc, clang, nvcc's front end, ptxas, nvlink and the linker, as data.

Text is parsed because nothing better is dependable: nvcc 13.0 has no documented machine-readable output, and its
undocumented SARIF is invalid JSON as soon as there are warnings.

Source: outputs of nvcc 13.0.88 and gcc 12.2, some of them in tests/toolchains/data, which capture.py there makes.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Literal

from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.toolchains.hints import hint_for

MAX_LINE = 4_000
MAX_MESSAGE = 500
MAX_CONTEXT = 160
CONTEXT_LINES = 3

_ANSI = re.compile(r"\x1b\[[0-9;]*[mK]")
_EDG = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d{1,9})\): (?P<severity>catastrophic error|error|warning|remark|note)"
    r"(?: (?P<code>#\d+(?:-D)?))?: (?P<message>.*)$"
)
_GNU = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)? "
    r"(?P<severity>internal compiler error|fatal error|error|Error|warning|Warning|remark|note): (?P<message>.*)$"
)
_GNU_FLAG = re.compile(r" \[(-[WR][^\]\s]{1,80})\]$")
_PTX_LINE = re.compile(
    r"^ ?ptxas(?:-blackwell)? (?P<file>\S[^;,]{0,400}), line (?P<line>\d{1,9}); "
    r"(?P<severity>fatal|error|warning|info)\s*: (?P<message>.*)$"
)
_TOOL = re.compile(
    r"^ ?(?P<tool>nvcc|ptxas(?:-blackwell)?|nvlink|fatbinary|cudafe\+\+|cicc|clang(?:\+\+)?(?:-\d+)?|lld|ld\.lld"
    r"|collect2|cc1(?:plus)?|lto1|as|gcc|g\+\+|c\+\+|cc)\s*:?\s*"
    r"(?P<severity>fatal error|fatal|error|warning|info|note)\s*: (?P<message>.*)$"
)
_LINKER = re.compile(
    r"^\S*?(?:ld|ld\.\w+): (?P<message>.+)$"
    r"|^(?:[^\s:]\S*:)?\(\S+\): (?P<reference>(?:warning: )?(?:undefined reference|multiple definition).*)$"
)
_EXPECTED = re.compile(r"^more undefined references|undefined reference to [`']_?Py")
"""Symbols of the interpreter, which every extension misses and finds: a warning of them is no news."""
_CMAKE = re.compile(
    r"^CMake (?:Deprecation )?(?P<severity>Error|Warning)(?: \(dev\))?"
    r"(?: (?:at|in) (?P<file>[^:\s]+)(?::(?P<line>\d{1,9}))?(?: \((?P<code>\w+)\))?)?:(?P<message>.*)$"
)
_CMAKE_CALLER = re.compile(r"(?P<file>[^\s:()]+):(?P<line>\d{1,9}) \((?P<code>\w+)\)$")
_MAKE = re.compile(r"^(?:g?make(?:\[\d+\])?: \*\*\*|ninja: error:) (?P<message>.*)$")
_GUTTER = re.compile(r"^\s*\d+ \| ?(?P<text>.*\S)")
_REQUIRED_FROM = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):\d+:\s+required from here")
_INSTANTIATION = re.compile(r"detected during|instantiation of|instantiation contexts not shown")
_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_]{2,1000}")
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_|Dp")
MAX_REFERENCES = 18
"""Back-references in a symbol that is still written out. Each can double the text: 250 characters grew to 570 MB."""
_TEMPORARY = re.compile(r"(?:^|/)(?:tmpxft_|cc[A-Za-z0-9]{6}\.)")
_SECTION = re.compile(r"^\S+:(?:\(\.\S+\+0x[0-9a-f]+\)|\d{1,9}): ")
"""Of an object file, before what the linker misses there: each use would be a message of its own."""
_TEMPORARY_NAME = re.compile(r" in '/tmp/[^']*'")
_PREPROCESSED = re.compile(r"__attribute__\(\((global|device|host|shared|constant)\)\)")
_AFTERTHOUGHT = re.compile(
    r"assembly aborted due to errors|^\[\S+\] Error \d|: \S+\] Error \d|Target '.*' not remade because of errors|"
    r"ld returned \d+ exit status|more undefined references to |compilation terminated|command failed with exit code"
)
_COUNT = re.compile(r"\d+ (?:errors?|warnings?)\b|In file included from ")
_USAGE_REMARK = "[-Rpass-analysis=kernel-resource-usage]"

_STAGES = {"device link": ("nvlink",), "link": ("ld", "collect2", "lld", "ld.lld")}
_DRIVERS = ("nvcc", "clang", "clang++", "gcc", "g++", "cc1", "cc1plus", "as", "cc", "c++")
_RESOURCES = re.compile(r"Entry function '|Registers are spilled|Unresolved extern function")

_TO_COME = "(no message)"
"""Of CMake, which says on the next lines what is wrong."""

_Severity = Literal["error", "warning", "note"]
_RANK: dict[_Severity, int] = {"error": 0, "warning": 1, "note": 2}


def demangle_text(text: str) -> str:
    """Return text with C++ symbols as a person writes them."""
    if not _MANGLED.search(text):
        return text
    import cxxfilt  # pyright: ignore[reportMissingTypeStubs]  # it has none; its import searches for libstdc++

    def plain(match: re.Match[str]) -> str:
        if len(_REFERENCE.findall(match.group())) > MAX_REFERENCES:
            return match.group()
        try:
            return cxxfilt.demangle(match.group())
        except cxxfilt.Error:
            return match.group()

    return _MANGLED.sub(plain, text)


def parse(stderr: str, ptx: str | None = None) -> list[Diagnostic]:
    """Return the messages, errors first, each once.

    nvcc's two front-end passes repeat warnings; those are dropped, and so are messages that only say that there
    were messages. Notes become context of what they belong to. Never raises: what is not understood is left out.

    Args:
        stderr: What the compiler wrote.
        ptx: The kept input of ptxas, to find the source line that an instruction came from.
    """
    reader = _Reader(ptx)
    for line in _ANSI.sub("", stderr).splitlines():
        reader.take(line[:MAX_LINE])
    return reader.finish()


def first_messages(diagnostics: Sequence[Diagnostic], count: int = 10) -> tuple[list[Diagnostic], int | None]:
    """Return the first few, and how many were left out if any were."""
    return list(diagnostics[:count]), max(len(diagnostics) - count, 0) or None


def stage_of(found: Sequence[Diagnostic]) -> str | None:
    """Return where a build failed, by its first error; None where there is none."""
    first = next((d for d in found if d.severity == "error"), None)
    if first is None:
        return None
    code = first.code or ""
    if code.startswith("ptx") or _RESOURCES.match(first.message):
        return "ptxas"
    named = next((stage for stage, tools in _STAGES.items() if code in tools), None)
    return named or ("driver" if first.file is None and code in _DRIVERS else "front end")


def output_tail(stderr: str) -> Diagnostic | None:
    """Return the end of an output in which `parse` found no error, for a build that failed all the same."""
    lines = [line.strip() for line in _ANSI.sub("", stderr[-8_000:]).splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"ptxas(?:-\w+)?(?:\s+info|\s+\.)", line)]
    if not lines:
        return None
    message = _short(lines[-1], MAX_MESSAGE)
    context = [_short(c, MAX_CONTEXT) for c in lines[-4:-1]]
    return Diagnostic(severity="error", message=message, context=context, hint=hint_for(message))


def _short(text: str, limit: int) -> str:
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text.strip())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _severity(word: str) -> _Severity:
    word = word.lower()
    if word in ("note", "remark", "info"):
        return "note"
    return "warning" if word == "warning" else "error"


class _Reader:
    """Takes lines one by one; a message is open until the next one begins."""

    def __init__(self, ptx: str | None) -> None:
        self._ptx = ptx
        self._found: list[Diagnostic] = []
        self._context: list[str] = []
        self._required_from: str | None = None
        self._takes_context = False
        self._source_is_next = False
        self._of_cmake = self._has_cause = False

    def take(self, line: str) -> None:
        source_is_next, self._source_is_next = self._source_is_next, False
        if self._message(line):
            return
        if source_is_next and not line[:1].isspace() and line.strip() and not _COUNT.match(line):
            self._context.append(line)
            return
        required = _REQUIRED_FROM.match(line)
        if required:
            self._required_from = f"required from {required['file']}:{required['line']}"
        elif self._takes_context:
            self._add_context(line)

    def finish(self) -> list[Diagnostic]:
        self._close()
        seen: set[tuple[str, str | None, int | None, str]] = set()
        kept: list[Diagnostic] = []
        for one in sorted(self._found, key=lambda d: _RANK[d.severity]):
            key = (one.severity, one.file, one.line, one.message)
            if key not in seen:
                seen.add(key)
                kept.append(one)
        afterthought = [d.severity == "error" and _AFTERTHOUGHT.search(d.message) is not None for d in kept]
        if not any(d.severity == "error" and not after for d, after in zip(kept, afterthought, strict=True)):
            return kept
        return [d for d, after in zip(kept, afterthought, strict=True) if not after]

    def _message(self, line: str) -> bool:
        """Open a message if the line is one; say whether it was understood."""
        if line.endswith(_USAGE_REMARK):
            self._takes_context = False
            return True
        for pattern in (_PTX_LINE, _EDG, _GNU, _TOOL, _CMAKE, _MAKE, _LINKER):
            match = pattern.match(line)
            if match:
                break
        else:
            return False
        found = match.groupdict()
        message = (found.get("message") or found.get("reference") or "").strip()
        if pattern is _LINKER:
            message = _SECTION.sub("", message)
            warned = message.startswith("warning: ")
            found["severity"], message = "warning" if warned else "error", message.removeprefix("warning: ")
        severity = _severity(found.get("severity") or "error")
        if pattern is _CMAKE and not message:
            message = _TO_COME
        if not message or (pattern is _LINKER and not found.get("reference") and "in function" in message):
            return True
        quiet = severity == "warning" and _EXPECTED.search(message)
        if quiet or (pattern is _TOOL and found["severity"] == "info"):
            self._takes_context = False
            return True
        if severity == "note" and self._found and pattern in (_GNU, _EDG):
            self._add_note(found, message)
            return True
        file, number = self._place(found, pattern)
        code = found.get("code")
        flag = _GNU_FLAG.search(message) if pattern is _GNU else None
        if flag:
            code, message = flag.group(1), message[: flag.start()]
        message = _TEMPORARY_NAME.sub("", demangle_text(message))
        column = found.get("column")
        self._close()
        self._takes_context = pattern in (_EDG, _GNU, _CMAKE)
        self._of_cmake = pattern is _CMAKE and message == _TO_COME
        self._source_is_next = pattern is _GNU  # old clang shows the source without a gutter, however it begins
        self._found.append(
            Diagnostic(
                severity=severity,
                message=_short(message, MAX_MESSAGE),
                file=file,
                line=number,
                column=int(column) if column and file else None,
                code=code or self._tool_code(found, pattern),
                hint=hint_for(message),
            )
        )
        return True

    def _place(self, found: dict[str, str | None], pattern: re.Pattern[str]) -> tuple[str | None, int | None]:
        file, line = found.get("file"), found.get("line")
        if pattern is _PTX_LINE:
            return source_place(self._ptx, int(line or 0)) if self._ptx else (None, None)
        if file is None or _TEMPORARY.search(file):
            return None, None
        if "/../" in file:  # as it was included; the workspace has it under its shortest name
            file = posixpath.normpath(file)
        return _short(file, 300), int(line) if line else None

    def _tool_code(self, found: dict[str, str | None], pattern: re.Pattern[str]) -> str | None:
        if pattern is _PTX_LINE:
            return f"ptx line {found['line']}"
        if pattern is _LINKER:
            return "ld"
        return found.get("tool")

    def _add_note(self, found: dict[str, str | None], message: str) -> None:
        # gcc lists every overload that it tried; the first note is what a person reads.
        if not any(c.startswith("note: ") for c in self._context):
            self._context.append(f"note: {message} ({found['file']}:{found['line']})")

    def _add_context(self, line: str) -> None:
        if self._of_cmake:
            self._add_of_cmake(line)
            return
        # nvcc shows the source as its preprocessor left it.
        text = _PREPROCESSED.sub(r"__\1__", line.strip())
        gutter = _GUTTER.match(line)
        if gutter and not self._context:
            self._context.append(gutter["text"])
        elif _INSTANTIATION.search(text):
            self._context.append(text.removeprefix("detected during:").removeprefix("detected during ").strip())
        elif line[:1].isspace() and text and not self._context and not set(text) <= set("^~| "):
            self._context.append(text)

    def _add_of_cmake(self, line: str) -> None:
        """Take a line of what CMake says below the place: its words, those of a compiler that it tried, who called."""
        text, open_one = line.strip(), self._found[-1]
        if not line[:1].isspace() and text:
            self._takes_context = text.startswith("Call Stack")
            return
        caller = _CMAKE_CALLER.match(text)
        if (
            caller and open_one.file and open_one.file.startswith("/")
        ):  # CMake's own module; its caller is the project's
            place = {"file": caller["file"], "line": int(caller["line"]), "code": caller["code"]}
            self._found[-1] = open_one.model_copy(update=place)
            return
        said = "" if open_one.message == _TO_COME else open_one.message
        if self._has_cause:
            return
        cause = next((m for p in (_EDG, _GNU, _TOOL) if (m := p.match(text))), None)
        if cause and _severity(cause["severity"]) == "error":
            said, self._has_cause = f"{said} {text}".strip(), True
        elif text and not said.endswith((".", "!", "?", ":")):
            said = f"{said} {text}".strip()
        else:
            return
        said = _short(said, MAX_MESSAGE)
        self._found[-1] = open_one.model_copy(update={"message": said, "hint": hint_for(said)})

    def _close(self) -> None:
        self._of_cmake = self._has_cause = False
        if not self._found:
            return
        lines = [_short(c, MAX_CONTEXT) for c in self._context if c.strip()]
        if self._required_from and self._found[-1].severity == "error":
            lines.insert(1, self._required_from)
            self._required_from = None
        if len(lines) > CONTEXT_LINES:
            # Of a chain of instantiations the last is where the person's own code is.
            lines = [*lines[: CONTEXT_LINES - 1], lines[-1]]
        if lines:
            self._found[-1] = self._found[-1].model_copy(update={"context": lines})
        self._context = []


def source_place(ptx: str, line: int) -> tuple[str | None, int | None]:
    """Return the source file and line from which a line of PTX came.

    Source: PTX ISA, directives `.loc FILE LINE COLUMN` and `.file INDEX "NAME"`; nvcc writes them with -lineinfo.
    """
    lines = ptx.splitlines()
    for text in reversed(lines[: max(line, 0)]):
        loc = re.match(r"\s*\.loc\s+(\d{1,9})\s+(\d{1,9})", text)
        if loc:
            name = re.search(rf'^[^\S\n]*\.file\s+{loc[1]}\s+"([^"\n]*)"', ptx, re.MULTILINE)
            return (name[1].rpartition("/")[2] if name else None), int(loc[2])
    return None, None
