"""The users of a shared server: tokens, quotas, rate limits, sharing, the audit log and webhooks.

Nothing here knows of HTTP. Who sent a request is found in web, and fair shares of GPUs are in hostd/gpus.
"""
