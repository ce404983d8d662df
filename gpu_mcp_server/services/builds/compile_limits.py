"""How much processor time a compile may take, and what an answer says when it took more."""

from gpu_mcp_server.hostd.protocol import JobRecord, Limits
from gpu_mcp_server.settings.server_settings import PREFIX, Settings

SHORT, LONG = "compile_cpu_s", "long_compile_cpu_s"
"""Settings: of a compiler that reads one source, and of one that may read a tree of headers."""
SHORT_WALL_S, LONG_WALL_S = 180.0, 1200.0
"""What a compile may take by the clock with the settings as they are: others may have the processor meanwhile."""


def cpu_setting(*, long: bool) -> str:
    """Return the name of the setting that limits a compile."""
    return LONG if long else SHORT


def compile_limits(settings: Settings, setting: str, *, wall_s: float | None = None, **more: int) -> Limits:
    """Return the limits of a compile; who raises its processor time gives it more by the clock as well.

    Args:
        settings: They have the processor time.
        setting: Which of them; see `cpu_setting`.
        wall_s: By the clock with the settings as they are, where it is not the usual time.
        more: Other limits.
    """
    cpu_s: float = getattr(settings, setting)
    usual_s: float = Settings.model_fields[setting].default
    wall_s = wall_s or (LONG_WALL_S if setting == LONG else SHORT_WALL_S)
    return Limits(wall_s=wall_s * max(1.0, cpu_s / usual_s), cpu_s=cpu_s, **more)


def note_of(record: JobRecord, setting: str) -> str:
    """Return a record's note; of a compile that a limit of time ended, with the setting that raises it."""
    if record.status != "timeout":
        return record.note
    return f"{record.note}; the setting {setting} ({PREFIX}{setting.upper()}) raises it"
