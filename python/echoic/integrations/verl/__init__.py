"""Keep the TransferQueue of verl's V1 trainer in an echoic server, from which it survives a crash.

``backend`` registers the storage backend ``Echoic`` when it is imported, which verl does with
``VERL_USE_EXTERNAL_MODULES=echoic.integrations.verl.backend``. ``replay_buffer`` has the sampler
that keeps what was trained until a checkpoint has it. ``rows`` and ``records`` say how rows are
stored, and need neither verl nor TransferQueue. See ``docs/guides/verl.md``.
"""
