"""Contract of every backend, whatever lies between us and the host: one suite, for our tests and for yours.

`gpu-mcp-server backend check NAME` runs it against a configured host. Who writes a backend runs `check(backend)`, or
makes a test of each of `BEHAVIOURS`, as `tests/backends/test_contract.py` does.
"""

from gpu_mcp_server.backends.contract.behaviour import Behaviour, BehaviourFailed, DoesNotApply
from gpu_mcp_server.backends.contract.check import BEHAVIOURS, BehaviourFinding, check

__all__ = ["BEHAVIOURS", "Behaviour", "BehaviourFailed", "BehaviourFinding", "DoesNotApply", "check"]
