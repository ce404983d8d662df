"""Table of a plain harness's and the judge's words on public candidates, side by side, as Markdown."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from candidate_shards import CONTROL

AT = "1e-4"
KNOWN_SPEEDUP = 4.0
"""Of the control candidate, by the bytes that both sides move."""
CONTROL_OFF = 0.15
"""By how much a shard's control may be off before its times are doubted."""
HEAD = (
    "| id | claimed | plain harness, at 1e-4 | speed-up | our judge | speed-up, interval | device, seconds | agree "
    "| reason |"
)
CLAIM_HEAD = "| id | claimed | our judge | speed-up, interval | device, seconds | reason |"
"""Where the judge alone ran."""
REASON = 130
NEAR = 1.1
"""Factor by which a claim may be off what was measured, and count as reached."""
UNEXPLAINED = "UNEXPLAINED"
REMARKS = {
    "it computed with torch": "its extension did not compile",
    "within the clock:": "a copy of its outputs is in its time",
}
"""What is told besides of a time, by words of the judge's summary."""
FARTHER = "the reference is about as far from double precision as the candidate, or farther"
"""In the judge's words; a plain harness takes the reference for the truth."""

Row = Mapping[str, Any]


def is_right(plain: Row) -> bool:
    """Say whether the plain harness takes a candidate for right at the tighter tolerance."""
    return not plain.get("error") and all(plain["right"][AT])


def plain_text(plain: Row) -> str:
    """Return the plain harness's verdict."""
    if plain.get("error"):
        return f"fails to {plain.get('stage', 'run')}"
    right, trials = sum(plain["right"][AT]), len(plain["right"][AT])
    if right == trials:
        text = "right"
    elif all(plain["right"]["1e-2"]):
        text = "right at 1e-2 only"
    else:
        text = f"wrong in {trials - right} of {trials} trials" if right else "wrong"
    off = max(plain["off"])
    text += f", {off:.0e} off" if off else ""
    return text + (", changes its input" if plain["writes"] else "")


def judge_text(judge: Row) -> str:
    """Return the judge's verdict."""
    if judge.get("verdict"):
        return str(judge["verdict"]) + (" (degenerate problem)" if judge.get("degenerate") else "")
    return "no verdict"


def is_agreed(row: Row) -> bool | None:
    """Say whether both sides say the same; None where the judge has no verdict."""
    if not row["judge"].get("verdict"):
        return None
    return is_right(row["plain"]) == (row["judge"]["verdict"] == "correct")


def explanation(row: Row) -> str:
    """Say why the two sides differ, by what was seen; else, or without a plain side, what the judge gives as reason."""
    judge = row["judge"]
    said = _cell(str(judge.get("reason") or judge.get("error") or ""))
    if "plain" not in row:
        return said
    plain = row["plain"]
    agreed = is_agreed(row)
    if agreed is None:
        return said or f"{UNEXPLAINED}: neither a verdict nor an error"
    if agreed:
        return "; ".join(filter(None, [_cell(str(plain.get("error") or "")), said]))
    if judge["verdict"] != "correct":
        return _cause_of_refusal(plain) + said
    if plain.get("error"):
        return f"the plain harness failed: {_cell(str(plain['error']))}"
    right, trials = sum(plain["right"][AT]), len(plain["right"][AT])
    if right:
        return f"the plain harness finds it right in {right} of {trials} trials"
    if FARTHER in str(judge.get("summary")):
        return FARTHER
    return f"{UNEXPLAINED}: off by {max(plain['off']):.1e} in the plain harness; {said}"


def reason(row: Row) -> str:
    """Return a row's reason: why it is not correct or the sides differ, else how its time stands to the claim."""
    said = explanation(row)
    judge = row["judge"]
    if said or judge.get("verdict") != "correct":
        return said
    if not judge.get("range"):
        whys = [str(s["unconfirmable"]) for s in judge.get("shapes", ()) if s.get("unconfirmable")]
        return "no time" + (f": {_cell(whys[0])}" if whys else "")
    low, high = judge["range"]
    faster = "faster than" if low > 1 else "slower than" if high < 1 else "as fast as"
    kept = {None: "", True: ", as claimed", False: ", not as claimed"}[keeps_claim(row)]
    said = str(judge.get("summary"))
    remarks = [remark for words, remark in REMARKS.items() if words in said]
    return "; ".join([f"{faster} the reference{kept}", *remarks])


def keeps_claim(row: Row) -> bool | None:
    """Say whether a candidate is at least about as fast as claimed; None without a claim or a time."""
    claimed, ends = row.get("claimed"), row["judge"].get("range")
    if not claimed or not ends or row["judge"].get("verdict") != "correct":
        return None
    return ends[1] * NEAR >= float(claimed)


def summary_line(rows: Sequence[Row]) -> str:
    """Return the sentence about all candidates that README has."""
    right = [row for row in rows if row["judge"].get("verdict") == "correct"]
    unknown = sum(not row["judge"].get("verdict") for row in rows)
    timed = [row["judge"] for row in right if row["judge"].get("range")]
    kept = Counter(keeps_claim(row) for row in right)
    ratios = [float(row["claimed"]) / row["judge"]["speedup"] for row in right if keeps_claim(row) is not None]
    text = f"Of {len(rows)} public candidates {len(right)} are correct"
    text += f" and {unknown} have no verdict" if unknown else ""
    text += (
        f"; {sum(judge['range'][0] > 1 for judge in timed)} of {len(timed)} with a time are faster than the reference"
    )
    if ratios:
        text += f"; {kept[True]} of {len(ratios)} reach the speed-up that was claimed, which is "
        text += f"{statistics.median(ratios):.2g} times the measured one in the median"
    return text + "."


def _cause_of_refusal(plain: Row) -> str:
    """Return what the plain harness saw that makes a candidate wrong although its answers are right."""
    if plain["writes"]:
        return "in place: it writes to its input; "
    if plain["kind"] != "Tensor":
        return f"lazy tensor: it returns a {plain['kind']}; "
    if plain["repeat_off"] > float(AT):
        return f"racy: two calls with the same inputs differ by {plain['repeat_off']:.0e}; "
    return f"{UNEXPLAINED}: "


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:REASON]


def _number(value: Any) -> str:
    return f"{value:.3g}" if value else "-"


def table_line(row: Row) -> str:
    """Return a candidate's line."""
    plain, judge = row.get("plain"), row["judge"]
    ends = judge.get("range")
    interval = f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends else ""
    seconds = " + ".join(f"{sum(side.get('held', {}).values()):.0f}" for side in (plain, judge) if side)
    cells = [row["id"], _number(row.get("claimed"))]
    cells += [plain_text(plain), _number(plain.get("speedup"))] if plain else []
    cells += [judge_text(judge), _number(judge.get("speedup")) + interval, seconds]
    cells += [{True: "yes", False: "no", None: "-"}[is_agreed(row)]] if plain else []
    return f"| {' | '.join([*cells, reason(row)])} |"


def control_lines(rows: Sequence[Row]) -> list[str]:
    """Say how far each shard's control is from what it is known to be."""
    lines: list[str] = []
    for row in rows:
        both = {side: row[side].get("speedup") for side in ("plain", "judge") if side in row}
        doubtful = any(not s or abs(s / KNOWN_SPEEDUP - 1) > CONTROL_OFF for s in both.values())
        said = ", ".join(f"{side} {_number(s)}" for side, s in both.items()) + f", {judge_text(row['judge'])}"
        doubt = f": DOUBTFUL, {explanation(row)}" if doubtful else ""
        lines.append(f"- shard {row['shard']}: control, known to be {KNOWN_SPEEDUP:g}: {said}{doubt}")
    return lines


def time_lines(rows: Sequence[Row]) -> list[str]:
    """Say where the time of a candidate went, part by part: the median, and the most."""
    parts: dict[str, list[float]] = {}
    for row in rows:
        for side in {"plain", "judge"} & row.keys():
            for name, value in {**row[side].get("held", {}), **row[side].get("seconds", {})}.items():
                parts.setdefault(f"{side}: {name}", []).append(float(value))
    lines = ["Where the time went. Parts without a name of the judge's are the device's turns, each alone:", ""]
    return lines + [
        f"- {name}: {statistics.median(values):.1f} s, at most {max(values):.1f}, in all {sum(values):.0f}"
        for name, values in parts.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """Return all rows as Markdown, with a summary before and the controls and times after."""
    candidates = [row for row in rows if row["id"] != CONTROL]
    head = HEAD if any("plain" in row for row in rows) else CLAIM_HEAD
    lines = [summary_line(candidates), ""]
    if head == HEAD:
        agreed = Counter(is_agreed(row) for row in candidates)
        open_rows = [str(row["id"]) for row in candidates if UNEXPLAINED in explanation(row)]
        counts = f"{agreed[True]} agree, {agreed[False]} differ, {agreed[None]} without a verdict"
        lines += [f"{len(candidates)} candidates: {counts}; not explained: {', '.join(open_rows) or 'none'}", ""]
    lines += [
        head,
        "|" + " --- |" * (head.count("|") - 1),
        *(table_line(row) for row in candidates),
        "",
        *control_lines([row for row in rows if row["id"] == CONTROL]),
        "",
        *time_lines(candidates),
    ]
    return "\n".join(lines) + "\n"
