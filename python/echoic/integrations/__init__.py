"""What connects Echoic with other libraries; each module imports its own."""
