"""Proof that a draft's directory is whole: speculators loads it and drafts what our own runner drafts."""

import os
from pathlib import Path

import torch
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from torch import Tensor

from kimi_adapters.draft_runner import DraftRunner


def first_drafts(
    folder: str | os.PathLike[str], verifier: str | os.PathLike[str], positions: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The first drafted token at each of `positions` random states, [positions] int64 target ids: (speculators', ours).

    speculators looks for the verifier under the name in config.json; here that is the local directory `verifier`. Its draft
    ids become target ids by the d2t that it has loaded: our reading of offsets must not judge itself.
    Float32 on CPU, whatever the stored dtype.
    """
    config = Eagle3SpeculatorConfig.from_pretrained(Path(folder))
    config.speculators_config.verifier.name_or_path = str(verifier)
    config.transformer_layer_config._attn_implementation = "sdpa"
    model = Eagle3DraftModel.from_pretrained(Path(folder), config=config).float().eval()
    runner = DraftRunner.load(folder)
    width = len(runner.shape.layer_ids) * runner.shape.hidden_size
    aux = torch.randn(positions, width, generator=generator)
    tokens = torch.randint(runner.shape.vocab_size, (positions,), generator=generator)
    with torch.no_grad():
        drafted = model(aux[None], tokens[None], torch.zeros(1, positions, dtype=torch.int64), ttt_steps=1)[0][0]
    cache = runner.new_cache(positions)
    rows = torch.arange(positions)
    ours = runner.propose(runner.feed(aux, tokens, cache, rows), rows, 1, cache)[:, 0]
    return drafted if model.d2t is None else drafted + model.d2t[drafted], ours
