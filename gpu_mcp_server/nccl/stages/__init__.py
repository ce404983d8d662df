"""The stages of a transformation: windows, warm-up, replaced calls, markers.

Each takes the text of the one before, and is done wholly or not at all. Whether the result is right is examined in
nccl/checks.
"""
