"""The server's requests as they arrive: over stdio, or inside an allocation of a batch system.

hostd reads frames here, answers requests and keeps a list of clients that wait for a job. `hostd/protocol.py` defines
frames; `hostd/jobs` runs jobs.
"""
