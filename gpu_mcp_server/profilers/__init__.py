"""What profilers and memory checkers print, read into models, and what follows from it.

Formats of Nsight, Proton, torch, rocprof and compute-sanitizer each have a module. Nothing here runs a profiler;
services/profiles does.
"""
