"""What the machine itself can do, measured by a small program in Rust.

The program is the crate beside this file; `program` builds and runs it, `suite` lists its probes.
Other suites show them beside their own bounds, whose loops are Python's.
"""
