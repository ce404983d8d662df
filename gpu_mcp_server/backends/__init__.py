"""Ways to reach a host: locally, by SSH, in Docker or through a batch system.

A backend opens a channel to hostd, and brings hostd there. What is said over the channel is in hostd/protocol, and
which host gets a job is decided in services/jobs.
"""
