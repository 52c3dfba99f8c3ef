"""The web view, ``echoic dashboard``: what a browser shows of a server that runs elsewhere.

- :mod:`.lookout` looks at the server now and then, however many browsers there are;
- :mod:`.account` says what it saw in JSON;
- :mod:`.items` reads single items of tables, and makes pictures of their leaves;
- :mod:`.server` answers browsers; ``page`` is what runs in them.

The server is the standard library's and the page is written by hand. NiceGUI was tried and left:
it brings 49 packages of 82 MB that take 3.7 s to import, for one page. A page of our own forbids,
by its content security policy, all scripts, styles and connections but those of its own address.
"""
