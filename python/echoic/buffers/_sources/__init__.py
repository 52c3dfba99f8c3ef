"""Where data sets come from: files and packages, each as columns with usual names.

A source gives arrays by name, of which :func:`echoic.buffers._sources.names.arrange` makes the
columns of a data set. Files are read as if anybody could have made them: nothing in them is
executed, sizes are compared with the file before memory is taken, and an error names the member.
"""
