"""An engine's counters are read by difference, over its processes, by position; dates are no counts."""

import pytest

from errors import UserError
from kimi_adapters.engine_metrics import Counters


def told(drafts: int = 40, drafted: int = 80, accepted: int = 30, first: int = 20, second: int = 10, tokens: int = 100) -> str:
    """As vLLM 0.32 writes them; ``tokens`` of one engine process, and 20 of a second one."""
    return f"""\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}.0
vllm:generation_tokens_total{{engine="1",model_name="m"}} 20.0
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{{engine="0",model_name="m"}} 1.7e+09
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.7e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_created gauge
vllm:spec_decode_num_accepted_tokens_per_pos_created{{engine="0",model_name="m",position="0"}} 1.7e+09
"""


LATER = told(drafts=50, drafted=100, accepted=40, first=27, second=13, tokens=125)


def test_acceptance_is_that_of_the_difference() -> None:
    before, after = Counters.read(told()), Counters.read(LATER)
    assert before == Counters(40, 80, 30, (20, 10), 120) and before.speculates
    run = after.since(before)
    assert run == Counters(10, 20, 10, (7, 3), 25)
    assert run.acceptance().length == 2.0 and run.acceptance().rates == (0.7, 0.3)


def test_an_engine_without_a_draft_or_without_a_past() -> None:
    plain = "".join(line + "\n" for line in told().splitlines() if "spec_decode" not in line)
    assert not Counters.read(plain).speculates
    assert Counters.read(told()).since(Counters.read(plain)).by_position == (20, 10)


@pytest.mark.parametrize(("text", "why"), [("{", "not Prometheus"), ("", "not those of vLLM"), ("up 1\n", "not those of vLLM")])
def test_what_is_no_counter_is_told(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Counters.read(text)


def test_counters_that_ran_backwards_are_told() -> None:
    with pytest.raises(UserError, match="started again"):
        Counters.read(told()).since(Counters.read(LATER))
