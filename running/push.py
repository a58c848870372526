"""``eyas push``: give the mirror everything that the store has and it lacks, what was made before it was set included."""

import logging
from argparse import Namespace
from typing import Any

from errors import UserError
from running.store_commands import existing_host

log = logging.getLogger("eyas")


def push(settings: Any, parsed: Namespace) -> int:
    """Send every record with its blobs; files that are cut there are sent again. Exit code 1 where something was not given."""
    host = existing_host(settings)
    if host.mirroring is None:
        raise UserError("store.mirror is not set: set it to the URI that `eyas push` shall fill")
    records = host.records.paths()
    host.mirroring.give_forgotten(host.forgotten)
    with host.store.in_use(), host.mirroring.giving():
        sizes = host.mirroring.sizes()
        for path in records:
            host.mirroring.offer(path.parent.name, path.stem, sizes)
    counts = host.mirroring.counts
    log.info("mirror: %d of %d nodes were there", counts["there"], len(records))
    return 1 if counts["missed"] else 0
