"""From an agent's words to a hand-off: JSON by its schema, or a fenced block of code."""

import json
import re
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.recipe import Candidate
from gpu_mcp_server.recipes.agents.agent_jobs import Answer

M = TypeVar("M", bound=Model)
FENCE = re.compile(r"^(`{3,})([\w+-]*)[^\n]*\n(.*?)^\1[ \t]*$", re.DOTALL | re.MULTILINE)
"""A fenced block as CommonMark has it (section 4.5), indented by nothing."""


def handed_over(answer: Answer, kind: type[M]) -> tuple[M | None, str]:
    """Return what an agent hands over, or why it cannot be used.

    handoff.json counts first, then the last fenced JSON, then a text that is JSON as a whole.
    """
    why = f"no JSON of a {kind.__name__.lower()} in handoff.json or in the answer"
    blocks = [block for _, word, block in FENCE.findall(answer.text) if word in ("json", "")]
    for text in (answer.handoff, *reversed(blocks), answer.text):
        if text is None:
            continue
        try:
            found: Any = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict):
            continue
        try:
            return kind.model_validate(found), ""
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None, why


def candidate_of(answer: Answer) -> tuple[Candidate | None, str]:
    """Return an agent's candidate: a hand-off, or its last fenced block of code."""
    candidate, why = handed_over(answer, Candidate)
    if candidate is not None:
        return candidate, ""
    blocks = [block for _, word, block in FENCE.findall(answer.text) if word != "json"]
    if not blocks or not blocks[-1].strip():
        return None, why
    idea = answer.text.partition("```")[0].strip().partition("\n")[0][:300]
    return Candidate(source=cast("str", blocks[-1]), idea=idea), ""
