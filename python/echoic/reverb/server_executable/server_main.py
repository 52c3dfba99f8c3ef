"""Name Reverb's program that serves tables; `echoic serve` is ours."""

from typing import NoReturn

from echoic.reverb.platform.default import server_main_command_line_args

__all__ = ["app_run_main", "main"]


def main(unused_argv: object = ()) -> NoReturn:
    """Raise an error that names our program."""
    server_main_command_line_args.get_server_config_proto()


app_run_main = main

if __name__ == "__main__":
    main()
