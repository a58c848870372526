"""A child of tests/running/test_pace.py: `… FOLDER DESCRIPTOR LAYERS PASSES`; it takes a layer for each line that it reads.

It prints two lines a layer: `began` when it may read it, and when it has, `took` or `last`; each with the host's clock then.
"""

import sys
import time
from pathlib import Path

from running.pace import Pace


def main() -> None:
    """The command line; the weights fit no memory."""
    folder, descriptor, layers, passes = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    pace = Pace(folder, descriptor, available=lambda: 0)
    for _ in range(passes):
        pace.begin(layers, 1)
        for layer in range(layers):
            sys.stdin.readline()
            pace.wait(layer)
            print("began", layer, time.monotonic(), flush=True)
            now = time.monotonic()
            print("last" if pace.took(layer) else "took", layer, now, flush=True)
    pace.leave()
    print("left", passes, time.monotonic(), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
