"""`python -m echoic` is the command `echoic`."""

from echoic.cli import main

# A process that `bench` starts imports this module, too.
if __name__ == "__main__":
    main()
