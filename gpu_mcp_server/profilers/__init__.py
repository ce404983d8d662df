"""Parsers of profilers' and memory checkers' output into models, and the advice that follows from them.

Formats of Nsight, Proton, torch, rocprof and compute-sanitizer each have a module. Nothing here runs a profiler;
services/profiles does.
"""
