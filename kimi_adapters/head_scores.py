"""What a verifier's final norm and head make of stored last states: log-probabilities and likeliest tokens, in blocks.

Memory: the head in float32 (vocabulary x hidden x 4 B: 113 MB for SmolLM2, 4.7 GB for Kimi-K2.5) and one block of logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_adapters.weights import Checkpoint

BLOCK_BYTES = 1 << 26  # of logits: 341 rows of SmolLM2's vocabulary, 102 of Kimi-K2.5's
_SMALLEST_GAIN = 1e-3  # of the largest; a smaller one would only return noise when it is divided out


@dataclass(frozen=True)
class RowScores:
    """For each row, on the CPU: the log-probability of its target F32 [n], and the likeliest token I64 [n]."""

    log_probs: Tensor
    choices: Tensor


class Head:
    """Final norm and language-model head of a checkpoint on a device, in float32."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str) -> None:
        self._gain = checkpoint.norm(torch.float32, device)
        self._weight = checkpoint.lm_head(torch.float32, device)
        self._eps = checkpoint.config.rms_norm_eps
        self.vocab_size = len(self._weight)

    @torch.no_grad()
    def score(self, rows: Tensor, targets: Tensor, normed: bool = False) -> RowScores:
        """Scores of last states [n, H] (the input of the final norm; with ``normed``, its output) against targets I64 [n].

        RMSNorm: x / sqrt(mean(x²) + eps) · gain; log-probability: the target's logit minus the logits' logsumexp.
        """
        size = max(1, BLOCK_BYTES // (4 * self.vocab_size))
        log_probs = torch.empty(len(rows))
        choices = torch.empty(len(rows), dtype=torch.int64)
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            states = rows[block].to(self._gain.device, torch.float32)
            if not normed:
                states = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self._eps) * self._gain
            logits = states @ self._weight.T
            wanted = logits.gather(1, targets[block].to(logits.device)[:, None])[:, 0]
            log_probs[block] = (wanted - logits.logsumexp(-1)).cpu()
            choices[block] = logits.argmax(-1).cpu()
        return RowScores(log_probs, choices)

    @torch.no_grad()
    def gain_free_rms(self, rows: Tensor) -> Tensor:
        """sqrt(mean((x / gain)²)) of each row of [n, H], float32 [n] on the CPU: 1 for the output of the final norm."""
        kept = self._gain.abs() > _SMALLEST_GAIN * self._gain.abs().max()
        bare = rows.to(self._gain.device, torch.float32)[:, kept] / self._gain[kept]
        rms: Tensor = bare.square().mean(-1).sqrt().cpu()
        return rms
