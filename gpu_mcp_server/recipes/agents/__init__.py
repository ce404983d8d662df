"""Agents as jobs: their command lines, prompts, output, and what they may reach.

Recipes are read here, and served as prompts. What runs beside an agent in its sandbox is in recipes/inside, and the
order of calls is in recipes/modes.
"""
