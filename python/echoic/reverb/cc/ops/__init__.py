"""Names of Reverb's operations of TensorFlow graphs."""
