"""Use Echoic with other libraries; each module imports its own."""
