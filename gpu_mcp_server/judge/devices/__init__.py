"""The device as the owner uses it: buffers that other processes map, kernels, the fence that stops the clock.

CUDA's driver and NVML are called from here. Which round is played, and what its time means, is in judge/timing.
"""
