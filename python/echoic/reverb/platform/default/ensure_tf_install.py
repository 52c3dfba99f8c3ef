"""Check for TensorFlow, which is needed only by what uses it."""

__all__ = ["ensure_tf_version"]


def ensure_tf_version() -> None:
    """Do nothing: any TensorFlow will do, and none too."""
