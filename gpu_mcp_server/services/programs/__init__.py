"""A user's whole program: where its time goes, problems of its calls, and what a kernel brings to it.

What belongs here runs a program of the user as it is and says something about the whole. Single kernels are judged in
`evaluation` and profiled in `profiles`; commands without a question are `commands`.
"""
