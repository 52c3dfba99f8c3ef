"""A model of servers and many workers: measured costs of parts, and what follows from them.

- `benchmarks.usage` reads what each thread of a process has used. `program` is a process that is a
  server, or clients of one.
- `parts` measures parts by themselves, and `costs` keeps them: seconds of a processor, bytes.
- `setups` are things that this machine can run whole. `predict` says from the costs how fast they
  are, and the suite ``model`` compares.
- `fleet` says what workloads of many workers need, `simulation` plays what happens when they all
  come at once, and `tables` writes both into the documentation.
"""
