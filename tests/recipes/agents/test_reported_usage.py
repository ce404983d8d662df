"""Words, cost and tokens as each client prints them of its own answers, and nothing made up."""

import json
from typing import Any

import pytest

from gpu_mcp_server.recipes.agents.reported_usage import MOST_TOKENS, parse_report

CLAUDE = {"type": "result", "result": "ok", "total_cost_usd": 0.25, "usage": {"input_tokens": 100, "output_tokens": 20}}
GEMINI = {
    "session_id": "s",
    "response": "ok",
    "stats": {
        "models": {
            "pro": {"tokens": {"prompt": 40, "candidates": 2, "total": 50}, "roles": {"main": {"tokens": {"total": 50}}}},
            "flash": {"tokens": {"prompt": 4, "candidates": 2, "total": 6}},
        },
    },
}  # fmt: skip
CODEX = "OpenAI Codex v0.169.0\nuser\nhi\ntokens used\n7\ncodex\nok\ntokens used\n12,345\n"


@pytest.mark.parametrize(
    ("text", "stderr", "said"),
    [
        (json.dumps(CLAUDE), "", ("ok", 0.25, 120)),
        ('{"type": "assistant"}\n{"type": "user"}\n' + json.dumps(CLAUDE), "", ("ok", 0.25, 120)),
        (json.dumps(GEMINI, indent=2), "", ("ok", None, 56)),
        ("a notice of the client\n" + json.dumps(GEMINI, indent=2), "", ("ok", None, 56)),
        ("ok", CODEX, ("ok", None, 12345)),
        ("ok", CODEX + "more\n", ("ok", None, None)),
        ('```json\n{"result": 1}\n```', "", ('```json\n{"result": 1}\n```', None, None)),
        ('{"response": "ok"}', "", ('{"response": "ok"}', None, None)),
        ("[" * 100_000, "tokens used\n,", ("[" * 100_000, None, None)),
    ],
)
def test_words_cost_and_tokens_are_read_as_each_client_prints_them(
    text: str, stderr: str, said: tuple[str, float | None, int | None]
):
    assert parse_report(text, stderr) == said


@pytest.mark.parametrize("tokens", [True, -1, 1.5, "9", None, MOST_TOKENS + 1, [], {}])
def test_what_is_no_count_is_unknown(tokens: Any):
    assert parse_report(json.dumps(CLAUDE | {"usage": {"input_tokens": tokens}}))[2] is None
    assert parse_report(json.dumps(CLAUDE | {"usage": tokens, "total_cost_usd": str(tokens)}))[1:] == (None, None)
    stats = {"models": {"pro": {"tokens": {"total": tokens}}, "odd": tokens}}
    assert parse_report(json.dumps(GEMINI | {"stats": stats}))[2] is None
    assert parse_report("ok", f"tokens used\n{MOST_TOKENS + 1}\n")[2] is None
