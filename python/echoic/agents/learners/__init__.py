"""What improves a policy: of vectors, by PPO and IMPALA, and of tokens.

Importing this module imports torch.
"""
