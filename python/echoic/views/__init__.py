"""Show the state of servers and stores.

- :mod:`echoic.views.reading`: the numbers of a server at one moment, the model of all views.
- :mod:`echoic.views.history`: past readings: current rates, and the series of charts.
- :mod:`echoic.views.problems`: what is stuck, why, and what helps, in words.
- :mod:`echoic.views.monitor`: polls a server.
- :mod:`echoic.views.plain`: a reading as plain text, or as data.
- :mod:`echoic.views.notebook`: objects of this process as HTML, for notebooks.
- :mod:`echoic.views.terminal`: ``echoic top``.
- :mod:`echoic.views.web`: ``echoic dashboard``.
"""
