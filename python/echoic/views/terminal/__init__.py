"""What a person sees of a server in a terminal: ``echoic top``.

- :mod:`~echoic.views.terminal.app`: the application, which looks and shows;
- :mod:`~echoic.views.terminal.looker`: the thread in which it looks, and what there is to show;
- :mod:`~echoic.views.terminal.overview`, :mod:`~echoic.views.terminal.table_screen`,
  :mod:`~echoic.views.terminal.help`: the screens;
- :mod:`~echoic.views.terminal.sections`, :mod:`~echoic.views.terminal.charts`: what they are made
  of.

It needs textual (``pip install 'echoic[top]'``).
"""

from echoic.views.terminal.app import Top

__all__ = ["Top"]
