"""Defines the ends of a shape's judging other than passing it."""

import signal
from typing import Any, Dict, Iterable, Optional, Tuple

VERDICTS = ("correct", "incorrect", "cheat")
"""From best to worst; the verdict over all shapes is the worst."""


class Judged(Exception):
    """The candidate did not pass; the reason is written for the kernel's author."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.where: Optional[Dict[str, Any]] = None
        """Where wrong elements lie, as a grid, where they were compared one by one."""
        self.answer: Optional[Tuple[int, int]] = None
        """Call and output, from 0, of the wrong answer that the reason tells of, if it is of one."""


class JudgeFailed(Exception):
    """The judge itself, the reference or the machine failed; says nothing about the candidate."""


class Refused(JudgeFailed):
    """The problem cannot be judged here, whatever the candidate is."""

    advice = ""


class TooLarge(Refused):
    """The problem does not fit the device; nobody failed."""

    advice = "declare smaller shapes"


class ReferenceFailed(Refused):
    """The reference raised or died; raising at a hidden shape or another distribution only leaves a trial out."""

    advice = "correct the problem's reference and register it again, or judge where the reference works"


class Torn(Refused):
    """The judge changed inputs of a running call and the candidate died in it: the cause is unknown."""

    advice = "judge it again, best while the machine is less busy"


class Unequipped(Refused):
    """A candidate or reference needs what the machine does not have: no verdict on either."""

    def __init__(self, role: str, lack: Dict[str, str], early: bool) -> None:
        super().__init__("the %s needs something that its host lacks: %s %s" % (role, lack["kind"], lack["name"]))
        self.lack = dict(lack, role=role, early=early)
        """Kind and name of what is missing, for whom, and whether nothing had been compared yet."""


def where_of(judged: Optional[BaseException]) -> Optional[Dict[str, Any]]:
    """Return where wrong elements lie, of a failure or of the one that it was made of; `None` if nobody looked."""
    while judged is not None:
        where: Optional[Dict[str, Any]] = getattr(judged, "where", None)
        if where is not None:
            return where
        # A failure that was raised anew in other words keeps the original as its context.
        judged = judged.__context__
    return None


def calls_text(count: int) -> str:
    """Return how many calls there are, such as "1 call"."""
    return "%d call%s" % (count, "s" * (count != 1))


def megabytes(size: int) -> str:
    """Return bytes as text, with a unit that needs no exponent."""
    return "%.3g MB" % (size / 1e6) if size < 999.5e6 else "%.3g GB" % (size / 1e9)


def duration(seconds: float) -> str:
    """Return a short time in words, with a unit that needs no exponent."""
    us = seconds * 1e6
    return "%.3g us" % us if us < 999.5 else "%.3g ms" % (us / 1e3)


def registration_result(
    reason: str, tried: Iterable[str] = (), notes: Iterable[str] = (), times_us: Iterable[float] = (), **more: Any
) -> Dict[str, Any]:
    """Return what trying a problem's reference found; with a reason the problem is refused."""
    lists = {"tried": list(tried), "notes": list(notes), "reference_us": list(times_us)}
    return {"mode": "register", "status": "refused" if reason else "ok", "reason": reason, **lists, **more}


def incorrect(reason: str) -> Judged:
    """Return the verdict for an honest failure."""
    return Judged("incorrect", reason)


def cheat(reason: str) -> Judged:
    """Return the verdict for something that no honest candidate does."""
    return Judged("cheat", reason)


HINTS = {
    "SIGSEGV": "an access outside the buffers, an aligned vector access at an address that is not aligned, "
    "a write to an input (inputs are read-only), or a stack overflow",
    "SIGBUS": "an access beyond the end of a buffer",
    "SIGILL": "an instruction that this CPU does not have",
    "SIGFPE": "an integer division by zero; whole numbers are drawn with 0 among them, and NumPy answers x // 0 by 0",
    "SIGABRT": "an assertion, an uncaught C++ exception, or a corrupted heap",
    "SIGSYS": "a system call that the sandbox forbids",
    "SIGKILL": "killed from outside or by a limit",
}


def death(event: Optional[Dict[str, Any]], *, hints: bool = True) -> str:
    """Return how a process ended, in words, from the supervisor's exit event; with `hints` for a kernel's author."""
    if event is None:
        return "closed its link without a message"
    # Asked before the signal: the kernel kills for memory by SIGKILL, which alone names no cause.
    if event.get("oom") is True:
        limit = event.get("memory_bytes")
        text = "ran out of memory and was killed"
        return text + (": it needed more than its limit of %.3g GB" % (limit / 1e9) if limit else "")
    number = event.get("signal")
    if isinstance(number, int) and number:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal %d" % number
        return "crashed with %s" % name + (": %s" % HINTS[name] if hints and name in HINTS else "")
    if event.get("exit_code") == 0:
        return "exited with status 0 without finishing its calls"
    return "exited with status %s without finishing its calls" % event.get("exit_code")
