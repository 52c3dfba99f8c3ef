"""Checkpointers, under Reverb's module paths."""
