"""Toolchains: a request becomes a build plan, compiler output becomes diagnostics."""
