"""What a plan refuses once it knows the verifier."""

from typing import Any

import pytest

from errors import UserError
from flows.checks import check_length
from tasks.handles import Verifier
from tasks.settings import Settings


def test_samples_longer_than_the_verifier_reads_are_refused() -> None:
    settings = Settings.model_validate({"corpus": {"max_length": 4096}})
    fitting: tuple[dict[str, Any] | None, ...] = (None, {}, {"max_length": 4096})
    for facts in fitting:
        check_length(settings, Verifier("v", facts, "", None, "chatml"))
    with pytest.raises(UserError, match=r"corpus\.max_length is 4096 and the verifier reads 4095 tokens"):
        check_length(settings, Verifier("v", {"max_length": 4095}, "", None, "chatml"))
