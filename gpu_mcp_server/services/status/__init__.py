"""How the laboratory stands: hosts and GPUs, what hosts can do, and figures for the dashboard.

Everything here asks or reads. Pages that show it are in web/dashboard, and metrics are in web.
"""
