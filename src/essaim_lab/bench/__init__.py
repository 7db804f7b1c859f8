"""Benchmarks: what Essaim promises, measured beside its peers in the same minute.

`python -m essaim_lab.bench [NAME …] [--quick]` prints a table and writes `bench.json`.
"""
