"""Checks of programs that use NCCL's device interface: static rules, builds under stress, what runs say.

Nothing here starts or reads anything: rules take a parsed program, plans are data, outputs are texts.
"""
