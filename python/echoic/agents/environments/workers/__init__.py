"""What runs in worker processes of environments, partly where Echoic is not installed."""
