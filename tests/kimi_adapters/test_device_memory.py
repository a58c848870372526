"""What a pass needs of a device's memory at Kimi-K2.5's widths, and what is said when it is not there."""

from collections.abc import Sequence

import pytest
import torch

from benchmarks.kimi_widths import config, values
from errors import UserError
from kimi_adapters.device_memory import HELD_BYTES, need
from kimi_adapters.device_paths import sizes
from kimi_adapters.pass_memory import Need, PassMemory, Room, layer_bytes

LAYERS = 2 * layer_bytes(config()).largest
SIZES = sizes(torch.device("cuda"))


def test_the_pass_that_was_measured() -> None:
    """benchmarks/NOTES_extraction.md: 76.4 GB at the peak, two shards of 131,072 tokens, one sample of 32,768."""
    found = need(config(), SIZES, [131072] * 2, 32768, LAYERS, HELD_BYTES)
    assert 74e9 < found.layers + found.streams + found.output + found.work < 79e9


def test_a_sample_of_128k_is_what_attention_needs() -> None:
    short, long = (need(config(), SIZES, [131072], longest, LAYERS, HELD_BYTES) for longest in (32768, 131072))
    assert long.work - short.work > 5e9


def passes(layers: int, shards: int) -> PassMemory:
    """Passes over full shards through so many layers of K2.5."""

    def needs(tokens: Sequence[int], size: int) -> Need:
        return need(config(), SIZES, tokens, 8192, size, HELD_BYTES)

    return PassMemory(needs, layer_bytes(config(values(layers))), [131072] * shards)


@pytest.mark.parametrize(("gigabytes", "fit"), [(141, 2), (79, 1), (78, 0)])
def test_too_little_memory_says_what_would_fit(gigabytes: int, fit: int) -> None:
    memory, room = passes(61, 2), Room(gigabytes * 10**9, "device")
    if fit == 2:
        memory.check(2, lambda size: room)
        return
    with pytest.raises(UserError) as caught:
        memory.check(2, lambda size: room)
    message = str(caught.value)
    assert f"of device memory and {gigabytes}.0 GB are free" in message
    assert ("shards_per_pass to 1" in message) if fit else ("give a device with" in message)
    assert memory.fits(1, room.bytes) == (fit == 1), "what it names fits, and nothing fits where it names nothing"


@pytest.mark.parametrize(("gigabytes", "stay"), [(140, True), (139, False), (100, False)])
def test_layers_stay_where_the_pass_fits_beside_them(gigabytes: int, stay: bool) -> None:
    """Seven layers and 8 shards: 139.5 GB with all layers, 96.1 with two; the layers alone take 60."""
    memory, free = passes(7, 8), gigabytes * 10**9
    memory.check(8, lambda size: Room(free, "device"))
    assert memory.stay(8, free) is stay
    assert memory.need(8, free).total / 1e9 == pytest.approx(139.5 if stay else 96.1, abs=0.1)


def test_layers_take_no_more_than_half() -> None:
    memory = passes(9, 1)
    assert memory.stay(1, 2 * 80 * 10**9) and not memory.stay(1, 2 * 77 * 10**9)
