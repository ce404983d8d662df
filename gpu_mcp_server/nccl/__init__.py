"""NCCL programs as syntax trees: what communicates, and edits that move it to the device.

Text goes in, and data or text comes out. Nothing here reads a file or starts a process; services/nccl does.
"""
