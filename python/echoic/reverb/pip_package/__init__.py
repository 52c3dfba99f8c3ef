"""An empty package of Reverb's."""
