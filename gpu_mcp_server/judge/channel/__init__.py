"""Connects the judge's processes: packets over sockets, and requests to the supervisor.

Freezing, thawing and killing another role is asked for here. What is said in a round is in judge/timing, and the
supervisor itself is in hostd/jobs.
"""
