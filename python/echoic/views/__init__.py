"""What a person sees of a server that runs elsewhere.

- :mod:`echoic.views.reading`: an observation as things with numbers: a stream, tables, doors.
- :mod:`echoic.views.problems`: what is stuck, why, and what helps, in words.
- :mod:`echoic.views.history`: readings of the last minutes, and rates between them.
- :mod:`echoic.views.flows`: how fast things go on.
- :mod:`echoic.views.buckets`: histograms as people read them.
- :mod:`echoic.views.plain`: a reading as plain text, or as data.
- :mod:`echoic.views.terminal` (``echoic top``) and :mod:`echoic.views.web` (``echoic dashboard``)
  show all of that.
"""
