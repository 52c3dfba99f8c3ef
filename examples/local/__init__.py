"""Examples for one process and no server: local buffers and a native collector."""
