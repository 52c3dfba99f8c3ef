"""Studies that take minutes or hours: what the documentation says of learning is measured here."""
