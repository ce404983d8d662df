"""Trust in a time, and the order of attempts by it: both follow from an attempt's row."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.ranking import overlap, share_ranks, trust_place

CONFIRMED_BY, CONTRADICTED_BY = "confirmed_by", "contradicted_by"
"""In an attempt's evidence: the attempt that judged it again and says the same, or otherwise; or ITSELF."""
ITSELF = "itself"
"""The evaluation was as thorough as a confirmation run."""
CORRECT = "kind = 'evaluate' AND verdict = 'correct' AND voided IS NULL"
TIMED = "(speedup IS NOT NULL OR coalesce(evidence ->> 'ranked_by', '') = 'time')"
BEST = f"{CORRECT} AND {TIMED}"
"""Attempts that rank: correct ones with a time."""
DOUBTED = "evidence ->> 'unconfirmable' IS NOT NULL"
CONFIRMED = f"(evidence ->> '{CONFIRMED_BY}' IS NOT NULL AND NOT {DOUBTED})"
LOW = "coalesce(evidence ->> '$.speedup_range[0]', speedup)"
"""The speed-up that an attempt has at least."""
HIGH = "coalesce(evidence ->> '$.speedup_range[1]', speedup)"
LOW_US = "CASE WHEN speedup IS NULL THEN coalesce(evidence ->> '$.time_range_us[0]', median_us) END"
HIGH_US = "CASE WHEN speedup IS NULL THEN coalesce(evidence ->> '$.time_range_us[1]', median_us) END"
"""The time that it takes at most, where there is no baseline."""
TRUST_EVIDENCE = (
    "json_object("
    + ", ".join(f"'{name}', evidence ->> '{name}'" for name in (CONFIRMED_BY, CONTRADICTED_BY, "unconfirmable"))
    + ") AS trust_evidence"
)
"""What `trust_of` reads of an attempt's evidence, which may be long."""
TIMED_ATTEMPTS = (
    f"(SELECT *, {TIMED} AS timed, {CONFIRMED} AS confirmed, {DOUBTED} AS doubted, {LOW} AS speedup_low, "  # noqa: S608
    f"{HIGH} AS speedup_high, {LOW_US} AS low_us, {HIGH_US} AS high_us FROM attempts)"
)
"""The attempts with the same as columns, for queries that have several tables."""
FASTER = f"{LOW} DESC, {HIGH_US}"
FASTEST = f"{FASTER}, seq"
BY_TRUST = f"CASE WHEN NOT {TIMED} THEN 3 WHEN {DOUBTED} THEN 2 WHEN {CONFIRMED} THEN 0 ELSE 1 END, {FASTER}"
RANKED = f"{BY_TRUST}, seq"
"""From the best on: confirmed times, provisional ones, unconfirmable ones, each by the bound that is worse for it; then
those without a time."""


def trust_of(verdict: str | None, voided: str | None, evidence: Mapping[str, Any], *, timed: bool) -> str | None:
    """Return the word for an attempt's time; None of one without a time, or voided for another reason.

    Args:
        verdict: What the judge said.
        voided: Why it was voided.
        evidence: The attempt's.
        timed: Whether it has a speed-up, or a time that ranks.
    """
    if verdict != "correct" or not timed:
        return None
    if evidence.get(CONTRADICTED_BY):
        return "contradicted"
    if voided:
        return None
    if doubt := evidence.get("unconfirmable"):
        return f"unconfirmable: {doubt}"
    return "confirmed" if evidence.get(CONFIRMED_BY) else "provisional"


def as_first_judged(attempt: Attempt) -> Attempt:
    """Return an attempt as its first look left it, before a confirmation run confirmed or voided it."""
    evidence = dict(attempt.evidence or {})
    if attempt.voided and evidence.pop(CONTRADICTED_BY, None):
        attempt = attempt.model_copy(update={"voided": None, "trust": "provisional", "evidence": evidence})
    first = evidence.get("first")
    if not first:
        return attempt
    figures = {name: first.get(name) for name in ("speedup", "median_us", "speedup_range", "time_range_us")}
    evidence["verdict_artifact"] = first.get("verdict_artifact")
    told = {**attempt.model_dump(), **figures, "trust": "provisional", "evidence": evidence}
    return Attempt.model_validate(told)


def number_ranks(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return a ranking with the rank of each: those whose intervals overlap the first one's of a rank share it.

    A rank ends where trust does.
    """
    shared = share_ranks(attempts, lambda each: each.trust is not None, _tied)
    return [
        attempt.model_copy(update={"rank": rank, "tied_with": first and first.attempt_id})
        for attempt, rank, first in shared
    ]


def _tied(one: Attempt, other: Attempt) -> bool:
    intervals = [(each.speedup_range, each.time_range_us) for each in (one, other)]
    return trust_place(one.trust) == trust_place(other.trust) and overlap(*intervals) is True
