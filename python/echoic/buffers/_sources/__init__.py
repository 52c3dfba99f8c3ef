"""Read data sets from files and packages, as columns with the usual names.

A source returns arrays by name, from which :func:`echoic.buffers._sources.names.arrange` makes the
columns of a data set. Files are not trusted: nothing in them is executed, sizes are compared with
the file before memory is allocated, and an error names the member.
"""
