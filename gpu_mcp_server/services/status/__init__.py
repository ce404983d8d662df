"""Status of the laboratory: hosts and GPUs, abilities of hosts, and figures for the dashboard.

Everything here asks or reads. Pages that show it are in web/dashboard, and metrics are in web.
"""
