"""Texts that programs of `workers` begin with: `worker_source` puts them in place of their import."""
