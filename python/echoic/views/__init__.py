"""What people see of a server that runs elsewhere.

- :mod:`echoic.views.reading`: an answer of a server as things with numbers, the one model.
- :mod:`echoic.views.history`: answers so far: rates of now, and the past as charts draw it.
- :mod:`echoic.views.problems`: what is stuck, why, and what helps, in words.
- :mod:`echoic.views.monitor`: asks a server again and again.
- :mod:`echoic.views.plain`: an answer as plain text, or as data.
- :mod:`echoic.views.notebook`: objects of this process as HTML, for notebooks.
- :mod:`echoic.views.terminal` (``echoic top``) and :mod:`echoic.views.web` (``echoic dashboard``)
  show all of that.
"""
