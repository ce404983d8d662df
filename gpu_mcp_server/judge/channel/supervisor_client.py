"""The owner's line to its supervisor, and to the processes that it plays with."""

import contextlib
import os
import select
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..folders import WORK
from ..machine_limits import lack_in
from ..verdicts import JudgeFailed, ReferenceFailed, Unequipped, cheat, death, incorrect
from .packet_link import Link, LinkClosed, LinkGarbage, LinkTimeout

REPLY_S = 20.0
"""How long the supervisor may take to freeze, thaw or kill."""
TURN_S = 86400.0
"""For the job's turn on a GPU: its supervisor ends the job where that takes too long."""
EXIT_S = 5.0
"""For a process that is killed to end."""
EXIT_EVENT_S = 2.0
"""How long to wait for the word on how a process ended, once its link is closed."""
SAID_CHARACTERS = 300
"""Of an error's first line, told where equipment is missing."""
LATE = {
    "load": "was not loaded",
    "prepare": "did not end its first call",
    "go": "did not return from its calls",
    "run": "did not exit",
}
"""What a player whose time is up was doing, for a kernel's author."""

OUT_OF_TURN = "spoke out of turn on its link: %s"
ALONE = ("start", "gate", "go", "finish")
"""Requests at which a player that was not asked for anything else since its hello runs the judge's own code alone."""


class Supervisor:
    """The process above the sandboxes: it freezes, thaws, kills, and tells how processes ended."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.exits: Dict[str, Dict[str, Any]] = {}
        self.how = ""
        """By what means the last freeze was done."""
        self.waited_s = 0.0
        """Time until the answers to all requests so far."""

    def wait_turn(self, starting: Sequence[Link], start_s: float) -> None:
        """Return when the job's GPUs are its own; it may have been started while it was in line for them.

        Args:
            starting: Links to processes that import. The job is let to its GPUs when all of them have answered.
            start_s: For how long they are waited for at most.
        """
        self._send("turn", "")
        left, until = list(starting), time.monotonic() + start_s
        while left and not self.link.pending() and time.monotonic() < until:
            sockets = [each.socket for each in (self.link, *left)]
            select.select(sockets, [], [], max(0.0, until - time.monotonic()))
            left = [each for each in left if not each.pending()]
        self._send("ready", "")
        self._await_answer("turn", "", "turn", time.monotonic() + TURN_S)
        self.waited_s = 0.0  # of the job's own time only

    def enter_window(self, part: str) -> bool:
        """Return when the job has its GPU `alone`, or shares it with others that are not alone either (`shared`).

        Where no other job can be on the GPU that is at once. The players must be frozen, and nothing of theirs at work.

        Returns:
            Whether other jobs have been on the GPU so far.
        """
        self._send("window", part)
        said = self._await_answer("window", part, "window", time.monotonic() + TURN_S)
        return said.get("beside") is True

    def are_others_beside(self) -> bool:
        """Say whether other jobs have been on the job's GPU until now."""
        return self._request("beside", "", "answered").get("beside") is True

    def freeze(self, role: str) -> None:
        """Return when no thread of `role` can run."""
        self.how = str(self._request("freeze", role, "frozen").get("how", ""))[:40]

    def thaw(self, role: str) -> Dict[str, Any]:
        """Let `role` run again; return whether it `ran` although it was stopped, and `at_s`: when it was let."""
        return self._request("thaw", role, "thawed")

    def kill(self, role: str) -> None:
        """End `role` and everything that it started."""
        self._request("kill", role, "killed")

    def dismiss(self, role: str) -> None:
        """End `role` without waiting for a word on it."""
        with contextlib.suppress(JudgeFailed):  # of a supervisor that is gone: then it is ended with the job
            self._send("kill", role)

    def exit_of(self, role: str, timeout_s: float) -> Optional[Dict[str, Any]]:
        """Return how `role` ended, waiting up to `timeout_s` seconds for the word."""
        deadline = time.monotonic() + timeout_s
        while role not in self.exits:
            try:
                self._note(self.link.receive(deadline - time.monotonic()))
            except LinkTimeout:
                return None
            except (LinkClosed, LinkGarbage) as error:
                raise JudgeFailed("the supervisor is gone: %s" % error) from None
        return self.exits[role]

    def _note(self, message: Dict[str, Any]) -> bool:
        if message.get("event") == "exit":
            self.exits[str(message.get("role"))] = message
            return True
        return False

    def _send(self, do: str, role: str) -> None:
        try:
            self.link.send({"do": do, "role": role})
        except LinkClosed as error:
            raise JudgeFailed("the supervisor did not answer %r: %s" % (do, error)) from None

    def _request(self, do: str, role: str, answer: str) -> Dict[str, Any]:
        began = time.monotonic()
        self._send(do, role)
        message = self._await_answer(do, role, answer, began + REPLY_S)
        self.waited_s += time.monotonic() - began
        return message

    def _await_answer(self, do: str, role: str, answer: str, until: float) -> Dict[str, Any]:
        try:
            while True:
                message = self.link.receive(until - time.monotonic())
                if message.get(answer) is True:
                    return message
                if not self._note(message):
                    if self.exit_of(role, EXIT_EVENT_S) is not None:
                        return {}
                    raise JudgeFailed("the supervisor answered %r with %r" % (do, str(message)[:200]))
        except (LinkClosed, LinkGarbage, LinkTimeout) as error:
            raise JudgeFailed("the supervisor did not answer %r: %s" % (do, error)) from None


class Player:
    """The candidate or the reference, seen from the owner. What goes wrong is put into words here."""

    def __init__(self, role: str, link: Link, supervisor: Supervisor) -> None:
        self.role = role
        self.foreign = role != "reference"
        """Whether what goes wrong is the candidate's doing; a program has a sandbox for each of its runs."""
        self.link = link
        self.supervisor = supervisor
        self.frozen = False
        self.thawed_s = 0.0
        """Just before it was let run last, on the monotonic clock, as the supervisor says."""
        self.lost = False
        """Whether it died or had to be killed."""
        self.device = "cpu"
        self.asked = ""
        self.rounds_asked = 0
        """Of rounds with calls: before the reply to the first one nothing has been compared."""
        self.sequence = 0
        self.prepare_s = 0.0
        """How long loading and a first call may take where they compile; 0 for what is compiled already."""
        self.is_empty = False
        """Whether nothing of a candidate is in it yet, only the judge's code and the host's libraries: what goes wrong
        then is the machine's or the judge's fault."""
        self.wants_gpu = ""
        """Languages of its kernels that run on a GPU alone, where it is judged without one."""

    def freeze(self) -> None:
        """Return when nothing of the player can run."""
        if not self.frozen:
            try:
                self.supervisor.freeze(self.role)
            except JudgeFailed as error:
                if self.foreign and "'frozen': False" in str(error):
                    raise self._lied("cannot be stopped when it says done") from None
                raise
            self.frozen = True

    def thaw(self) -> None:
        """Let the player run."""
        if self.frozen:
            said = self.supervisor.thaw(self.role)
            self.frozen = False
            self.thawed_s = float(said.get("at_s") or 0.0)
            # A reference gains nothing by it: the problem's author can make it slow in plainer ways.
            if said.get("ran") is True and self.foreign:
                raise self._lied("ran while it was stopped: it sent itself SIGCONT or the like")

    def kill(self) -> None:
        """End the player."""
        self.supervisor.kill(self.role)

    def end(self) -> bool:
        """End the player and wait for its end; return whether it came."""
        self.kill()
        return self.supervisor.exit_of(self.role, EXIT_S) is not None

    def ask(self, do: str, timeout_s: float, descriptors: Sequence[int] = (), **fields: Any) -> Dict[str, Any]:
        """Send a request and return the player's reply.

        Raises:
            Judged: If the candidate died, timed out, or said what it was not asked.
            ReferenceFailed: If the reference did.
        """
        self.tell(do, descriptors, **fields)
        return self.hear(timeout_s)

    def tell(self, do: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Send a request, whose reply `hear` returns; if the player is gone, `hear` tells how."""
        # Drawn and not counted up: a forked copy of the candidate must not know the number of the next request.
        self.asked, self.sequence = do, int.from_bytes(os.urandom(6), "big")
        self.is_empty = do == "hello" or (self.is_empty and do in ALONE)
        self.rounds_asked += do == "go" and bool(fields.get("calls"))
        with contextlib.suppress(LinkClosed):
            if self.link.pending():
                self._unasked()
            self.link.send(dict(fields, do=do, seq=self.sequence), descriptors)

    def hear(self, timeout_s: float) -> Dict[str, Any]:
        """Return the reply to the last request; raises as `ask` does."""
        return self._heard(timeout_s, lambda: (self.link.receive(timeout_s), []))[0]

    def hear_files(self, timeout_s: float) -> Tuple[Dict[str, Any], List[int]]:
        """Return the reply to the last request and the descriptors that came with it; raises as `ask` does."""
        return self._heard(timeout_s, lambda: self.link.receive_with_descriptors(timeout_s))

    def _heard(
        self, timeout_s: float, receive: Callable[[], Tuple[Dict[str, Any], List[int]]]
    ) -> Tuple[Dict[str, Any], List[int]]:
        try:
            reply, files = receive()
        except LinkClosed:
            while_loaded = ", while it was loaded" if self.asked == "load" else ""
            how = death(self.supervisor.exit_of(self.role, EXIT_EVENT_S), hints=not self.is_empty)
            raise self._fault(how + while_loaded) from None
        except LinkTimeout:
            self.kill()
            what = LATE.get(self.asked) or "did not answer %r" % self.asked
            if self.prepare_s and self.asked in ("load", "prepare"):
                what += " (compilation counts)"
            raise self._fault("%s within %.0f s and was killed" % (what, timeout_s)) from None
        except LinkGarbage as error:
            raise self._lied(OUT_OF_TURN % error) from None
        if reply.get("seq") != self.sequence:
            raise self._lied(OUT_OF_TURN % "an answer without a request, as a forked copy sends it")
        lack = lack_in(str(reply["error"]), self.device, WORK) if reply.get("error") else None
        if reply.get("error") and self.wants_gpu:
            lack = lack or {"kind": "gpu", "name": self.wants_gpu}
        if lack:
            said = str(reply["error"]).strip().splitlines() or [""]
            # A reference's error is a traceback, which ends in the words.
            lack["said"] = said[-1 if said[0].startswith("Traceback") else 0][:SAID_CHARACTERS]
            raise Unequipped(self.role, lack, early=self.rounds_asked <= 1)
        return reply, files

    def quiet(self) -> None:
        """Complain if the player said more than it was asked."""
        if self.link.pending():
            try:
                self._unasked()
            except LinkClosed:
                raise self._fault(death(self.supervisor.exit_of(self.role, EXIT_EVENT_S))) from None

    def _unasked(self) -> None:
        try:
            self.link.receive(0)
        except LinkGarbage as error:
            raise self._lied(OUT_OF_TURN % error) from None
        raise self._lied(OUT_OF_TURN % "a message without a request")

    def _fault(self, how: str) -> Exception:
        self.lost = True
        if self.is_empty and self.foreign:
            return self._broken(how)
        return incorrect(how) if self.foreign else ReferenceFailed("the reference %s" % how)

    def _broken(self, how: str) -> Exception:
        text = "the process for the %s %s; nothing of the %s was loaded yet, so the machine or the judge failed"
        return JudgeFailed(text % (self.role, how, self.role))

    def _lied(self, how: str) -> Exception:
        if self.is_empty and self.foreign:
            return self._broken(how)
        return cheat(how) if self.foreign else JudgeFailed("the reference %s" % how)
