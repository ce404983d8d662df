"""The candidate's process: it loads somebody's code, and calls it when the owner says so.

One module for each kind of candidate, with what they share. Nothing that runs here is believed; what is measured of
it is in judge/timing and judge/checks.
"""
