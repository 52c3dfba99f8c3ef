"""Show servers in a browser: ``echoic dashboard``.

- :mod:`.state` returns the content of the page as JSON;
- :mod:`.items` reads single items of tables, and makes pictures of their leaves;
- :mod:`.server` is the HTTP server; ``page`` has the files that run in the browser.

The server is the standard library's. The page's content security policy forbids all scripts, styles
and connections but those of its own address.
"""
