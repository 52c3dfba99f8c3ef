"""Benchmarks of Echoic beside the physical bounds of the machine and its peers.

Run ``python -m benchmarks --help``. Every workload checks that what it received is
what it sent before it prints its one JSON line.
"""
