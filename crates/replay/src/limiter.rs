//! Who must wait: the rate limiter of a table.
