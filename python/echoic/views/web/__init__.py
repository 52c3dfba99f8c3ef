"""Servers in a browser: ``echoic dashboard``.

- :mod:`.state` is what the page shows, as JSON;
- :mod:`.items` reads single items of tables, and makes pictures of their leaves;
- :mod:`.server` answers browsers; ``page`` is what runs in them.

The server is the standard library's, and the page forbids, by its content security policy, all
scripts, styles and connections but those of its own address.
"""
