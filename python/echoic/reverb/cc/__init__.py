"""Messages under the names that Reverb's protocol buffers have."""
