"""Programs that run beside an agent in its sandbox: a chat agent, and the ways to model and tools.

Standard library and Python 3.8 syntax only, with nothing of ours imported. The other end of those ways is
recipes/agents/agent_proxy.
"""
