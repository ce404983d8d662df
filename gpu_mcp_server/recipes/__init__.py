"""Headless runs: the server calls agents, and judges what they write, until a target or a limit.

`headless_runs` begins and resumes one run, and `suites` plays many. The texts of recipes are in agent_recipes, and
judging is in services/evaluation.
"""
