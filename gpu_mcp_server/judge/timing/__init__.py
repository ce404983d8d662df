"""Rounds and their times: one round, series of rounds, the clock's own cost, the machine's state.

Calls that overlap or share work are found here, since that voids a time. Rounds that try to catch a cheat are in
judge/checks.
"""
