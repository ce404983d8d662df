"""Comments of C headers as plain text."""

import re
from collections.abc import Callable

_NOTES = {"note": "Note:", "warning": "Warning:", "remark": "Remark:"}


def _said(match: re.Match[str]) -> str:
    return _NOTES.get(match.group(0)[1:], "")


# In this order. Source: the commands that CUDA's, HIP's, NCCL's and rocBLAS's headers use.
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"[\\@](?:p|c|e|a|b|em|ref)\s+"), ""),
    (re.compile(r"(?<!\w)::(?=\w)"), ""),
    (re.compile(r"\\note(?:fnerr|fn\w*|_\w+)"), ""),
    (re.compile(r"[\\@]param(?:\[[a-z, ]{1,12}\])?\s+"), "Parameter: "),
    (re.compile(r"[\\@]returns?\b"), "Returns:"),
    (re.compile(r"[\\@](?:sa|see)\b"), "See also:"),
    (re.compile(r"[\\@]brief\s*"), ""),
    (re.compile(r"[\\@]retval\s+"), "Error: "),
    (re.compile(r"[\\@](?:details?|par|note|remark|warning|addtogroup|ingroup|internal|endinternal)\b"), _said),
    (re.compile(r"[\\@](?:end)?cond \w+|[\\@](?:end)?(?:link|code|verbatim|latexonly|htmlonly|xmlonly)\b"), ""),
    (re.compile(r"<[^>\n]{1,30}>"), ""),
    (re.compile(r"#(?=hip|HIP|roc|nccl)"), ""),
    (
        re.compile(r"^\s*(?:DEEPLEARN-SRM.*|\\req.*|\\exception-guarantee.*|\\behavior.*|CUDA_MATH\w*)$", re.MULTILINE),
        "",
    ),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def strip_comment(comment: str) -> str:
    """Return a comment without its delimiters and stars."""
    if comment.startswith("//"):
        return re.sub(r"^\s*//[/!]?<?\s?", "", comment)
    inner = re.sub(r"\*+/$", "", re.sub(r"^/\*+[!<]*", "", comment))
    return "\n".join(re.sub(r"^\s*\*(?!\*)\s?", "", line) for line in inner.split("\n"))


def plain(comment: str) -> str:
    """Return the text of a comment without Doxygen's commands."""
    for pattern, replacement in _RULES:
        comment = pattern.sub(replacement, comment)
    return comment.strip()
