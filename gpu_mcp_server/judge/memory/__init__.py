"""Gives reference and candidate memory at its address, and keeps memory that they have freed.

They map files, view memory as tensors, and set malloc. The owner's own buffers are in judge/devices.
"""
