"""The users of a shared server: tokens, quotas, rate limits, sharing and the audit log.

Nothing here knows of HTTP. Who sent a request is found in web, and fair shares of GPUs are in hostd/gpus.
"""
