"""Serves requests of a trusted role: freeze, thaw or kill another role, its job's turn, and windows on its GPU."""

import json
import socket
import time
from typing import Any, Callable, Dict, List, Optional

from ..gpus.gpu_window import GpuWindow
from .role_process import RoleProcess

PARTS = ("alone", "shared")
WINDOW_S, TOLD_S = 600.0, 1.0
"""How long a role waits for a part of its GPU's time, and from when on its job's record says so."""


class ControlLink:
    """The supervisor's end of a trusted role's link."""

    def __init__(self, end: socket.socket, roles: List[RoleProcess], memory_bytes: int = 0) -> None:
        self._end, self._roles = end, roles
        self._memory_bytes = memory_bytes
        """What each role may have."""
        self.open = True
        self.has_turn = True
        """Whether the job has its GPUs; if not, `grant_turn` answers a request for the turn."""
        self.is_ready = False
        """Whether the role said that all is done that can be done without them."""
        self._asked = False
        self.window: Optional[GpuWindow] = None
        """Of a job that shares its GPU; without one the GPU is its own all the time."""
        self.is_beside: Callable[[], bool] = lambda: False
        """Says whether other jobs have been on the GPU meanwhile."""
        self.tell: Callable[[str], None] = lambda words: None
        """Puts words into the job's record while it runs."""
        self._waits_since, self._told = 0.0, False
        self._fault: Dict[str, Any] = {}

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._end.fileno()

    def serve(self) -> None:
        """Answer one request."""
        try:
            data = self._end.recv(4096)
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        try:
            request = json.loads(data.decode("utf-8"))
            answer = self._answer(str(request["do"]), str(request["role"]))
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": "not a request: %s" % error}
        except OSError as error:
            answer = {"error": "%s" % error}
        if answer:
            self._send(answer)

    def grant_turn(self) -> None:
        """Tell that the job has its GPUs, if that was asked."""
        self.has_turn = True
        if self._asked:
            self._send({"turn": True})

    def is_waiting(self) -> bool:
        """Say whether the role waits for a part of its GPU's time."""
        return self.open and self.window is not None and bool(self.window.wanted)

    def try_window(self) -> None:
        """Let the role go on, if what it waits for can be had."""
        window = self.window
        waited_s = time.monotonic() - self._waits_since
        try:
            if window is not None and window.try_enter():
                self._send({"window": True, "beside": self.is_beside()})
            elif window is not None and waited_s > WINDOW_S:
                raise OSError("other jobs left it no time on its GPU for %.0f s" % WINDOW_S)
        except OSError as error:
            self._fault = {"error": "%s" % error}
            self._send(self._fault)
            if window is not None:
                window.close()
        if self._told != (self.is_waiting() and waited_s > TOLD_S):
            self._told = not self._told
            others = "is timed" if window is not None and window.wanted == "shared" else "computes"
            self.tell("waits until no other job %s on its GPU" % others if self._told else "")

    def _answer(self, what: str, name: str) -> Dict[str, Any]:
        if what == "turn":
            self._asked = True
            return {"turn": True} if self.has_turn else {}
        if what == "ready":
            self.is_ready = True
            return {}
        if what == "window":
            if self._fault:
                return self._fault
            if self.window is not None and name in PARTS:
                self.window.want(name)
                self._waits_since = time.monotonic()
                return {}
            return {"window": True, "beside": self.is_beside()}
        if what == "beside":
            return {"answered": True, "beside": self.is_beside()}
        # A trusted role must not freeze its peers or itself: no role would be left to ask for the thaw.
        role = next((r for r in self._roles if r.name == name and not r.trusted), None)
        if role is None:
            return {"error": "no untrusted role %r" % name}
        if what == "freeze":
            how = role.freeze()
            return {"frozen": bool(how), "how": how}
        if what == "thaw":
            had_run = role.thaw()
            return {"thawed": True, "at_s": role.thawed_s, **({"ran": True} if had_run else {})}
        if what == "kill":
            role.kill()
            return {"killed": True}
        return {"error": "unknown request %r" % what}

    def send_exit(self, role: RoleProcess) -> None:
        """Tell that a role has ended."""
        oom = role.out_of_memory()
        event = {"event": "exit", "role": role.name, "exit_code": role.exit_code, "signal": role.signal, "oom": oom}
        if oom:
            event["memory_bytes"] = self._memory_bytes
        self._send(event)

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            # The supervisor never blocks on a role, as it also enforces the job's limits.
            self._end.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except OSError:
            self.open = False
