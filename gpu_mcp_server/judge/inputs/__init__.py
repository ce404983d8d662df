"""Inputs that need more than a random generator: hidden shapes, and inputs that the problem's own code makes.

How those travel between processes is here too. Values drawn from a distribution are in judge/numerics, since devices
need them as well.
"""
