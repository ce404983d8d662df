"""The judge: what is sent to a host to measure a candidate. Nobody imports it; its files are shipped and run there.

One job, three processes: `owner` makes inputs, holds the clock and the answers; `reference` computes what is
expected; `candidate` is somebody else's code. `main` starts each of them.
"""
