"""A host that is being drained: what runs goes on, nothing new is begun, and those who wait keep their places.

A file beside the GPUs' locks says so, one for each login. Root's counts for everybody, another login's for its own.
"""

import json
import os
import time
from typing import Any, Dict, Optional, cast

from .lock_folder import make_folder

NAME = "drain-%d"
MAX_WORDS = 200
MAX_BYTES = 4096


class DrainFiles:
    """The drains of a folder of locks."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def set_drain(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Begin a drain (`on` is true) or end it, and say how it stands."""
        if request.get("on"):
            self.begin(str(request.get("why", "")), str(request.get("by", "")))
        elif "on" in request:
            self.end()
        return {"drained": self.drain_reason(os.geteuid()), "for_all": os.geteuid() == 0}

    def begin(self, why: str, by: str) -> None:
        """Drain the host for this login's jobs, or as root for all."""
        make_folder(self._folder)
        path = self._path(os.geteuid())
        said = {"why": why[:MAX_WORDS], "by": by[:MAX_WORDS], "since": time.time()}
        with open(path + ".new", "w", encoding="ascii") as out:
            json.dump(said, out)
        os.chmod(path + ".new", 0o644)
        # Readers see the old text or the new one, never half a file.
        os.replace(path + ".new", path)

    def end(self) -> None:
        """Let new jobs of this login in again, or as root all."""
        try:
            os.unlink(self._path(os.geteuid()))
        except FileNotFoundError:
            pass

    def drain_reason(self, uid: int) -> str:
        """Say why nothing new of a login is begun here, or nothing."""
        for owner in (0, uid):
            said = self._said(owner)
            if said is not None:
                since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(_number(said.get("since"))))
                # Control characters could rewrite a reader's terminal.
                why = "".join(c if c.isprintable() else "?" for c in str(said.get("why", "")))[:MAX_WORDS]
                by = "".join(c if c.isprintable() else "?" for c in str(said.get("by", "")))[:MAX_WORDS]
                return "the host is being drained by %s since %s" % (by or "somebody", since) + (why and ": " + why)
        return ""

    def _path(self, uid: int) -> str:
        return os.path.join(self._folder, NAME % uid)

    def _said(self, uid: int) -> Optional[Dict[str, Any]]:
        try:
            # The folder is open to every login: a link or FIFO planted here must neither mislead nor block.
            fd = os.open(self._path(uid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # Anybody can make a file of this name, so only its owner's word counts.
            if os.fstat(fd).st_uid != uid:
                return None
            said: Any = json.loads(os.read(fd, MAX_BYTES).decode("ascii"))
        except (OSError, ValueError, RecursionError):
            # An unreadable file of the right owner still drains: it says so by being there.
            return {}
        finally:
            os.close(fd)
        return cast("Dict[str, Any]", said) if isinstance(said, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and 0.0 <= value < 1e11 else 0.0
