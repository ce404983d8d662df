"""Errors of the system, as opposed to failures of the user's kernel.

* GpuMcpError
  + ConfigError            the settings are wrong; a person must edit them
  + BadRequest             an argument of the call cannot be used
    - NotFound             a handle (problem, job, workspace, attempt, artifact, file) names nothing
    - PathRefused          a path leaves its workspace, or is no regular file
    - LimitExceeded        a source, file or list is over its limit
  + HostError              the machine or the scheduler did not do what we asked
    - HostUnavailable      it cannot be reached; retry may help
    - HostKeyUnknown       an SSH host key is new or has changed
    - NoFreeGpu            nothing fits the request now
    - HostDrained          it takes nothing new for a while
    - SandboxTooWeak       the host cannot confine a job as the settings demand
    - JobBroken            hostd failed while it ran the job
    - DiskFull             the host or the store has no room left
  + ToolMissing            a program (nvcc, gcc, ncu) is not there
    - MachineLacks         a candidate needs a module, library, program or GPU that is not there; it was not judged
  + QuotaExceeded          a user of a shared server has taken all they may for now
  + ToolCallFailed         to a program that calls a server's tools: the server refused the call, or the tool failed
  + ProblemRefused         a problem that cannot be judged: its reference fails, or trivial answers pass

A kernel that does not compile, computes the wrong answer or runs out of time is
not an error: it is a result with a `status`.
"""


def _ended(text: str) -> str:
    """Return a text with one full stop at its end, unless it ends as a sentence may already."""
    text = text.strip()
    if text.endswith("..") and not text.endswith("..."):
        text = text.rstrip(".")
    return text if not text or text.endswith((".", "!", "?", "…", ":")) else text + "."


class GpuMcpError(Exception):
    """Base of every failure we foresee; its text is shown to the agent.

    Attributes:
        hint: One sentence on what the agent or the person can do next.
        retryable: Whether the same call may succeed later, unchanged.
    """

    hint: str = ""
    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(message)
        self.hint = hint or self.hint
        self.retryable = self.retryable if retryable is None else retryable

    def prefix_with(self, whom: str) -> "GpuMcpError":
        """Return the error with whom it is about said first."""
        self.args = (f"{whom}: {self.args[0]}", *self.args[1:])
        return self

    def __str__(self) -> str:
        """Say what happened and what to do about it, each as sentences that end."""
        return " ".join(filter(None, map(_ended, (super().__str__(), self.hint))))


class ConfigError(GpuMcpError):
    """The settings are wrong."""


class BadRequest(GpuMcpError):
    """An argument of the call cannot be used."""


class NotFound(BadRequest):
    """A handle names nothing."""

    def __init__(self, what: str, handle: str, *, hint: str = "") -> None:
        super().__init__(f"There is no {what} {handle!r}.", hint=hint)


class PathRefused(BadRequest):
    """A path leaves its workspace, or is not a regular file."""


class LimitExceeded(BadRequest):
    """Something is over its limit; the message says the limit."""


class HostError(GpuMcpError):
    """A machine or a scheduler did not do what we asked."""


class HostUnavailable(HostError):
    """The host cannot be reached."""

    retryable = True
    hint = "Call gpu_status to see which hosts answer."


class HostKeyUnknown(HostError):
    """An SSH host key is new or has changed."""


class NoFreeGpu(HostError):
    """No GPU fits the request now."""

    retryable = True


class HostDrained(HostError):
    """The host is being drained: what runs there goes on, nothing new is begun."""

    retryable = True
    hint = "Name another host, or none; a person ends it with `gpu-mcp-server hosts resume NAME`."


class SandboxTooWeak(HostError):
    """The host cannot confine a job as the settings demand."""


class JobBroken(HostError):
    """hostd failed while it ran the job."""

    retryable = True


class DiskFull(HostError):
    """The host or the store has no room left."""

    retryable = True


class ToolMissing(GpuMcpError):
    """A program that the job needs is not installed on the host."""

    def __init__(self, program: str, host: str, *, hint: str = "") -> None:
        super().__init__(
            f"{program} is not installed on host {host!r}.",
            hint=hint or "Run `gpu-mcp-server doctor` for the missing tools and how to get them.",
        )


class MachineLacks(ToolMissing):
    """A candidate or reference needs what its host does not have: nothing was judged, and no attempt is kept."""

    def __init__(self, need: str, host: str, hint: str, *, without: str = "and there is none on") -> None:
        GpuMcpError.__init__(self, f"Nothing was judged: {need}, {without} host {host!r}.", hint=hint)


class QuotaExceeded(GpuMcpError):
    """A user of a shared server has taken all they may for now; the message says of what, and until when."""

    retryable = True


class ToolCallFailed(GpuMcpError):
    """A server refused a call of `gpu_mcp_server.client`, or the tool failed; the message is the server's own."""


class ProblemRefused(GpuMcpError):
    """A problem that cannot be judged.

    Attributes:
        degenerate: Whether it is refused only because an answer without work is right.
    """

    def __init__(self, message: str, *, hint: str = "", degenerate: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.degenerate = degenerate
