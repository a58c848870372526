"""An S3 server of one's own (moto's), in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers import answers, free_port

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start it; yields the environment in which S3 clients find it. Its buckets live in its memory."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # a client of an earlier server would be taken for one of this
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command, env={**os.environ, **KEYS}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if not answers(f"{url}/moto-api/", 0.1):
            raise RuntimeError(f"moto's server does not answer at {url}")
        yield {**KEYS, "AWS_ENDPOINT_URL": url}
    finally:
        server.kill()
        server.wait()
