"""A job that runs, as the channel that took it sees it: what its supervisor has said."""

import socket


class Running:
    """One job, until its supervisor has gone.

    Attributes:
        timed: Whether something is timed that the making of a sandbox would disturb.
        changed: Whether it has said something since it was last looked at.
        ended: Whether it has said that its record is written.
    """

    def __init__(self, end: socket.socket, timed: bool, start_is_news: bool = False) -> None:
        self._end, self.timed, self._start_is_news = end, timed, start_is_news
        self.changed = self.ended = self._spoke = False

    def fileno(self) -> int:
        """Return the descriptor over which it speaks."""
        return self._end.fileno()

    def hear(self) -> bool:
        """Take what it says; False when it has gone.

        That it started is news if it was said to be queued, or if that is what somebody waits for.
        """
        try:
            said = self._end.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        if not said:
            self._end.close()
            return False
        self._spoke = self.changed = self._spoke or self._start_is_news or said != b"start"
        self.ended = self.ended or said == b"end"
        return True

    def is_worth_a_look(self, fresh: bool) -> bool:
        """Say whether its folder may hold news for who listens.

        Args:
            fresh: Whether the one who listens has not looked yet.
        """
        return self._spoke and (fresh or self.changed)

    def say(self, what: bytes) -> None:
        """Tell its supervisor something; one that does not listen is not waited for."""
        try:
            self._end.send(what, socket.MSG_DONTWAIT)
        except OSError:
            pass
