"""A problem's name by its content: what counts for it, what counted for it once, and how old names are joined to new.

Its name, description and implementations are not the problem: two that differ in these alone are one, with one history.
"""

import hashlib
import json
from typing import Any, Literal

from gpu_mcp_server.models.problem import Problem

BESIDE = ("name", "description", "implementations")
"""What does not count."""
LATER = (
    "kind",
    "program",
    "implementations",
    "constraints",
    "fixed_shapes",
    "distributions",
    "robust",
    "precision",
    "ties",
    "libraries",
    "requires",
    "backward",
    "flops",
    "bytes",
    "basis",
    "degenerate",
    "state",
    "constants",
    "copy_state",
    "layouts",
    "adapter",
    "files",
    "cases",
    "case_layouts",
    "case_constants",
    "scalars",
)
"""Fields that came later: they count where they are not what they were before."""
RULE = 2
"""How the hash is taken; by the first rule the fields of `BESIDE` counted too."""


def content_hash(problem: Problem, rule: Literal[1, 2] = RULE) -> str:
    """Return the sha256 of what a problem asks for, as canonical JSON."""
    left_out = {"problem_id", "content_hash", *(BESIDE if rule == RULE else ())}
    content: dict[str, Any] = problem.model_dump(mode="json", exclude=left_out)
    for name in LATER:
        if name in content and content[name] == Problem.model_fields[name].default:
            del content[name]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def id_of(digest: str) -> str:
    """Return the id of a problem with this content hash."""
    return f"p-{digest[:12]}"


def name_by_content(problem: Problem) -> Problem:
    """Return a problem with the id that its content gives it."""
    digest = content_hash(problem)
    return problem.model_copy(update={"problem_id": id_of(digest), "content_hash": digest})


def is_what_its_id_says(problem: Problem) -> bool:
    """Say whether a problem's id and hash are those of its content, by the rule of today or the one before."""
    return any(
        (problem.content_hash, problem.problem_id) == (digest, id_of(digest))
        for digest in (content_hash(problem), content_hash(problem, 1))
    )
