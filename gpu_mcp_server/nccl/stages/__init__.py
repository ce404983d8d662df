"""The stages of a transformation: infrastructure, warmup, replace, mark. Each edits syntax trees."""
