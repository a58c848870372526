"""How a retraining ended."""

from dataclasses import dataclass, field
from typing import Literal

from artifacts.manifest import Ref
from flows.train_draft import DraftRun


@dataclass(frozen=True)
class Outcome:
    """How a retraining ended; ``because`` gives its reasons in sentences.

    ``waits``: a person is to approve ``candidate`` in the place of ``champion``. ``left_out`` tells of files that were passed
    over.
    """

    verdict: Literal["promoted", "refused", "waits", "nothing new"]
    because: list[str]
    candidate: str | None = None
    champion: str | None = None
    decision: Ref | None = None
    left_out: list[str] = field(default_factory=list)
    made: DraftRun | None = None

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        named = f" {self.candidate[:12]}" if self.candidate else ""
        return f"{self.verdict}{named}: {'; '.join(self.because)}"
