"""Checks of programs that use NCCL's device interface: static rules, stress builds, and what runs print.

Nothing here starts or reads anything. The builds and runs themselves are made in services/nccl.
"""
