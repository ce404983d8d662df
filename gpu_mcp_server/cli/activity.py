"""What a command does while it takes long: a line on stderr, at a terminal only.

A command announces each thing that may take more than a second. What ends sooner stays unsaid, and so does what a
progress line tells.
"""

import sys
import threading

from gpu_mcp_server.cli.output import note

AFTER_S = 0.7
"""So long a person has waited by then: what came before, imports, took some tenths."""
_pending: list[threading.Timer] = []


def announce(text: str) -> None:
    """Say what the command does now, unless it has ended by AFTER_S; takes the place of what was announced before.

    Nothing is said where stderr is no terminal, or where the command prints JSON.

    Args:
        text: What, and on which host or file; without a full stop.
    """
    withdraw()
    if not sys.stderr.isatty() or "--json" in sys.argv:
        return
    timer = threading.Timer(AFTER_S, note, (f"{text} ...",))
    timer.daemon = True
    _pending.append(timer)
    timer.start()


def withdraw() -> None:
    """Leave unsaid what was announced: it has ended, or something else tells it."""
    while _pending:
        _pending.pop().cancel()
