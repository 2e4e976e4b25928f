"""Microbenchmarks: each file is a command of its own; `python -m bench` runs them all."""
