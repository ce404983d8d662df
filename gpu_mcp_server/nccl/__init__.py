"""NCCL programs as syntax trees: what communicates, what it communicates, and edits that move it to the device.

Text in, data or text out: nothing here reads a file, starts a process or knows a host. Roads through the room:
`syntax` (one file) and `program` (a set of files) parse; `trace` walks the program in the order in which it runs;
`places` says which memory an expression means; `kernels` what a kernel reads and writes; `analysis` puts the
graph together; `stages` edits.
"""
