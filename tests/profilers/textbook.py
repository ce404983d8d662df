"""Textbook profiles: situations with the advice that an expert gives first, kept as data."""

import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers import bottleneck, ncu_details
from gpu_mcp_server.profilers.hardware_units import PERCENT

DATA = Path(__file__).parent / "data" / "textbook"


@dataclass(frozen=True)
class Outcome:
    """First advice of the server, and an expert's opinion of it."""

    name: str
    advised: str
    right: bool
    harmful: bool


def page_of(profile: dict[str, Any]) -> str:
    """Return a profile's labels and rules as ncu prints its page details."""
    lines = [
        f"  {profile['name']}(float *) {profile['grid']}x{profile['block']}, Context 1, Stream 7, Device 0, CC 9.0"
    ]
    lines += ["    Section: All of it", "    ------- ------- -------"]
    lines += [f"    {label:<40}  {unit:<16}  {value:>14}".rstrip() for label, unit, value in profile["labels"]]
    for kind, gain, text in profile["rules"]:
        said = [*([gain] if gain else []), *textwrap.wrap(text, 108)]
        lines += ["", f"    {kind}   {said[0]}", *(f"          {line}" for line in said[1:])]
    return "\n".join(lines) + "\n"


def reading_of(profile: dict[str, Any]) -> KernelReading:
    """Return a profile of the file as a reading, through the reader of text where it is one of labels."""
    if "labels" in profile:
        (reading,) = ncu_details.parse_text(page_of(profile))
        return reading
    units = {f"{name}{PERCENT}": value for name, value in profile.get("unit", {}).items()}
    return KernelReading(
        name=profile["name"],
        calls=profile.get("calls", 1),
        time_us=profile["time_us"],
        total_us=profile["time_us"] * profile.get("calls", 1),
        grid=profile.get("grid"),
        block=profile.get("block"),
        metrics={**units, **profile.get("metrics", {})},
        units_percent=profile.get("units_percent", {}),
        stalls=profile.get("stalls", {}),
        rules=[Rule.model_validate(r) for r in profile.get("rules", [])],
    )


def outcomes(file: str) -> list[Outcome]:
    """Ask for advice on each profile of a file; no advice counts as what the verdict says last."""
    found: list[Outcome] = []
    for profile in tomllib.loads((DATA / file).read_text())["profile"]:
        verdict = bottleneck.kernel_verdict(reading_of(profile))
        said = verdict.advice[0] if verdict.advice else verdict.verdict.splitlines()[-1]
        right = re.search(profile["first"], said, re.IGNORECASE) is not None
        harmful = bool(verdict.advice) and re.search(profile["never"], said, re.IGNORECASE) is not None
        found.append(Outcome(profile["name"], said, right and not harmful, harmful))
    return found
