"""Checkpointers, under the module paths that they have in Reverb."""
