"""Show a server in a terminal: ``echoic top``. It needs textual (``pip install 'echoic[cli]'``)."""

from echoic.views.terminal.app import Top

__all__ = ["Top"]
