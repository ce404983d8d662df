"""Modules that programs of workers/ have beside them, or with their text in place of an import."""
