"""Documentation of what is installed: read into entries, indexed, searched, measured."""
