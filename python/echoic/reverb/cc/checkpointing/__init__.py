"""Messages that describe tables to be made."""
