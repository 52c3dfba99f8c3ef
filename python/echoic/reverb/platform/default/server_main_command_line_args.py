"""Name the arguments of Reverb's program that serves tables."""

from typing import NoReturn

__all__ = ["get_server_config_proto"]


def get_server_config_proto() -> NoReturn:
    """Raise an error that names our program.

    Raises:
        NotImplementedError: Always: the text form of messages is not read here.
    """
    raise NotImplementedError(
        'echoic.reverb reads no text of messages: run "echoic serve --config tables.toml", with '
        'api = "reverb" for each table, in place of reverb_server --config'
    )
