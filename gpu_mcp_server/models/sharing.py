"""Sharing of a user's handles with other users."""

from typing import Literal

from gpu_mcp_server.models._base import ResultModel

Audience = Literal["project", "everybody", "nobody"]


class ShareResult(ResultModel):
    """Users that see a handle now, besides its owner."""

    handle: str
    seen_by: str
    """`everybody`, `project NAME`, or `nobody`."""
    also: list[str] = []
    """What goes with it: an attempt's job and artifacts, a workspace's none."""

    def summary(self) -> str:
        """Say who sees what."""
        more = f", with {', '.join(self.also)}" if self.also else ""
        return f"{self.handle} is seen by {self.seen_by} besides its owner{more}"
