"""Time limit of a command that was given none."""

from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.services.commands import command_runner
from tests.laboratory import Folder, client_of, refused

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("given", "limit_s"),
    [({}, 60.0), ({"detach": True}, DAY_S), ({"timeout_s": 5}, 5.0), ({"detach": True, "timeout_s": 5}, 5.0)],
)
async def test_a_detached_job_gets_a_day_over_mcp_too(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], limit_s: float
):
    asked: list[float] = []

    def check(argv: Any, env: Any, timeout_s: float, stdin: str) -> None:
        asked.append(timeout_s)
        raise BadRequest("Seen.")

    monkeypatch.setattr(command_runner, "check_command", check)
    with Folder() as folder:
        async with client_of(folder) as client:
            assert "Seen." in await refused(client, "run_command", command=["true"], **given)
    assert asked == [limit_s]
