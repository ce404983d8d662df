"""The judge: what is sent to a host to measure a candidate.

It runs there as the package `gpu_mcp_judge`, in three processes that `main` starts: owner, reference and candidate.
The server imports none of it; services/evaluation sends it and reads its verdict.
"""
