"""Make servers from messages."""
