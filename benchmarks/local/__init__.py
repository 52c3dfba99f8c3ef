"""Local buffers, primitives and collectors beside peers: what one process does for itself.

`suite` lists the workloads; `stores`, `calls` and `rollouts` run them; `engine` says what they need
of a library.
"""
