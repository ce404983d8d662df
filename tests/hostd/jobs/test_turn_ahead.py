"""Readiness of a job whose processes start ahead of its turn."""

import json
import socket

from gpu_mcp_server.hostd.jobs import turn_ahead
from gpu_mcp_server.hostd.jobs.owner_control import ControlLink


def test_a_job_whose_owner_never_says_ready_takes_its_turn_in_the_end(monkeypatch):
    ours, owners = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    links = [ControlLink(ours, [])]
    ahead = turn_ahead.AheadOfTurn(links, lambda: True)
    ahead.able = True
    assert not ahead.is_ready()
    ahead.start()
    owners.send(json.dumps({"do": "turn", "role": ""}).encode())
    assert not ahead.is_ready() and ahead.descriptors() == [ours.fileno()]

    monkeypatch.setattr(turn_ahead, "START_S", -1.0)
    assert ahead.is_ready() and ahead.descriptors() == []
    ahead.grant_turn()
    assert json.loads(owners.recv(4096)) == {"turn": True}
    for end in (ours, owners):
        end.close()
