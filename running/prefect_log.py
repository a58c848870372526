"""Our own log lines in Prefect: they belong to the run that writes them, however it was started."""

import logging

from prefect.logging.handlers import APILogHandler


def send_log_to_prefect() -> None:
    """Hand the lines of the ``eyas`` logger to Prefect's server, from level INFO."""
    log = logging.getLogger("eyas")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, APILogHandler) for handler in log.handlers):
        log.addHandler(APILogHandler())
