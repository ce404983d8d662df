"""One job from its specification to its record: folders, roles, limits, supervisor, cleanup.

Leases and reservations of GPUs belong here as well. Sandboxes that are made ahead are in hostd/prewarm, and requests
of the server arrive in hostd/channel.
"""
