"""How the reference and the candidate reach memory by its address, and keep what they have freed.

They map files, view memory as tensors, and set malloc. The owner's own buffers are in judge/devices.
"""
