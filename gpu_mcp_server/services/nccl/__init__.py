"""NCCL programs through the laboratory: transformed, built, run on ranks, verified, and taken through all stages.

Jobs and workspaces are used here. Syntax trees and rules, which need no host, are in nccl.
"""
