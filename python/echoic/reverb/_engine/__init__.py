"""What Reverb does in C++, done by Echoic's tables; the public names are in ``pybind``."""
