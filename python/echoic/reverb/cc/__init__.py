"""Messages with the names of Reverb's protocol buffers."""
