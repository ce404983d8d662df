"""The judge: what is sent to a host to measure a candidate. Nobody imports it here; its files run over there.

On a host it is the package `gpu_mcp_judge`, in a folder that its processes can only read and that is on no path of
modules: a problem or candidate that imports `check` gets its own. One job, three processes: `owner` makes inputs, holds
the clock and the answers; `reference` computes what is expected; `candidate` is somebody else's code. `main` starts
each of them.
"""
