"""What the kernel says of this host's memory."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int:
    """What programs could take now; the page cache's share of it included."""
    return _field("MemAvailable")


def total_bytes() -> int:
    """The host's memory."""
    return _field("MemTotal")


def _field(name: str) -> int:
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
