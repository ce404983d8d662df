"""The modes of a run: agent, structured, population and NCCL, and how they prepare.

Each is a loop whose state follows from the journal. Prompts and agents are in recipes/agents, and steps are in
recipes/run.
"""
