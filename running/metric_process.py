"""One logger's process: ``python -P -m running.metric_process '[LOGGER, NAME, FOLDER]'``; JSON lines come on standard input.

It ends when they do. speculators brings the loggers; their imports and their network stay out of the run's own process.
"""

import json
import logging
import sys
from collections.abc import Iterable
from typing import Any


def serve(logger: str, name: str, folder: str, lines: Iterable[str | bytes]) -> None:
    """Log every line's ``values`` at its ``step``."""
    from speculators.train.logger import setup_metric_logger

    setup_metric_logger(loggers=[logger], run_name=name, output_dir=folder)
    metrics: Any = logging.getLogger("speculators.metrics")
    for line in lines:
        event = json.loads(line)
        metrics.info(event["values"], extra={"step": event["step"]})
    logging.shutdown()


if __name__ == "__main__":
    logger, name, folder = json.loads(sys.argv[1])
    serve(logger, name, folder, sys.stdin.buffer)
