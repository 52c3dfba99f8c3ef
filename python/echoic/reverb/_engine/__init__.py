"""Do with Echoic's tables what Reverb does in C++; the public names are in ``pybind``."""
