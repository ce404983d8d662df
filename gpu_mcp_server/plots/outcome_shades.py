"""Colour classes of states and outcomes, for pages and pictures."""

GOOD = {"correct", "ok", "finished", "target", "held", "confirmed"}
BAD = {
    "incorrect", "failed", "compile_failed", "timeout", "oom", "disk_quota", "broken", "no_candidate", "error",
    "configure_failed", "link_failed", "tests_failed", "no_tests",
}  # fmt: skip
BUSY = {"running", "queued", "unfinished"}
SHADES = {"cheat": "cheat", "note": "", "voided": "", "cancelled": "", "caller_lost": "", "abandoned": ""}


def status_class(word: str | None) -> str:
    """Return the class of colour for how something stands."""
    said = word or ""
    if said in SHADES:
        return SHADES[said]
    return "good" if said in GOOD else "bad" if said in BAD else "busy" if said in BUSY else "warn" if said else ""
