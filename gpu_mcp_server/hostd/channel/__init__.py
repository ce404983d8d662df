"""The server's requests as they arrive: over stdio, or inside an allocation of a batch system.

Frames are read, requests answered, and those who wait for a job are kept here. The form of the frames is in
hostd/protocol, and the jobs are in hostd/jobs.
"""
