"""What a pass needs of a device's memory at Kimi-K2.5's widths, and what is said when it is not there."""

import pytest
import torch

from benchmarks.kimi_widths import config
from errors import UserError
from kimi_adapters.device_memory import HELD_BYTES, check_fits, need
from kimi_adapters.device_paths import sizes

LAYERS = 2 * 9_930_000_000
SIZES = sizes(torch.device("cuda"))


def test_the_pass_that_was_measured() -> None:
    """benchmarks/NOTES_extraction.md: 76.4 GB at the peak, two shards of 131,072 tokens, one sample of 32,768."""
    found = need(config(), SIZES, [131072] * 2, 32768, LAYERS, HELD_BYTES)
    assert 74e9 < found.layers + found.streams + found.output + found.work < 79e9


def test_a_sample_of_128k_is_what_attention_needs() -> None:
    short, long = (need(config(), SIZES, [131072], longest, LAYERS, HELD_BYTES) for longest in (32768, 131072))
    assert long.work - short.work > 5e9


@pytest.mark.parametrize(("gigabytes", "fit"), [(141, 2), (78, 1), (60, 0)])
def test_too_little_memory_says_what_would_fit(gigabytes: int, fit: int) -> None:
    shards = [131072] * 2
    found = need(config(), SIZES, shards, 8192, LAYERS, HELD_BYTES)
    if fit == 2:
        check_fits(found, gigabytes * 10**9, shards)
        return
    with pytest.raises(UserError) as caught:
        check_fits(found, gigabytes * 10**9, shards)
    message = str(caught.value)
    assert f"{gigabytes}.0 GB are free" in message
    assert ("shards_per_pass to 1" in message) if fit else ("give a device with" in message)
