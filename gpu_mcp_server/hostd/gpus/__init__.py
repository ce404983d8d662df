"""The GPUs of a host: what drivers say of them, the locks that lease them, and the queue for them.

The broker and its rules of order are here, with clients for it. A job's own lease is in hostd/jobs, and the choice
between hosts is in services/jobs.
"""
