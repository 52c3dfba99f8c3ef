"""What Reverb does in C++, done by Echoic's tables; ``echoic.reverb.pybind`` has the public names."""
