"""Training: states, masks and a recipe become a draft. Resumes from its last checkpoint after a crash."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from artifacts.stage import Input, Made, Node, Pending, Stage
from errors import UserError
from running.job import Job
from tasks.formats import CURVES, START, VOCABULARY
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

log = logging.getLogger("eyas")
STAGE = Stage(
    "training",
    module=__name__,
    libraries=("torch", "transformers", "speculators"),
    reproducible=False,
    retries=1,
    device="accelerator",
    resumes=True,
)


def check(settings: Settings, on_gpu: bool = False) -> None:
    """Refuse a recipe that could not be trained, hours before a child would."""
    from kimi_adapters.recipe import Recipe

    recipe = Recipe.from_dict(settings.training.recipe())
    if on_gpu:
        recipe.check_gpu()


def node(
    settings: Settings,
    shards: list[Shard],
    states: list[Made],
    checked: Made,
    words: Made,
    verifier: Verifier,
    memo: Any,
    parent: Input | Pending | None = None,
) -> Node:
    """The one node; of the verifier it reads embeddings, final norm and head, of validation only the quarantine.

    A checkpoint to go on from and a parent draft are inputs like any other: by their content in the key, by path or alias in
    the lineage.
    """
    inputs = {"verifier": verifier.input("embed", "norm", "lm_head", "numbers")}
    inputs |= {"quarantine": checked.input("quarantine"), "vocabulary": words.input("vocabulary")}
    for i, (shard, made) in enumerate(zip(shards, states, strict=True)):
        inputs |= {f"ids.{i}": shard.ids, f"masks.{i}": shard.masks, f"states.{i}": made.input("states")}
    if settings.training.continue_from:
        path = _newest_checkpoint(Path(settings.store.state), settings.training.continue_from, memo)
        inputs["continued"] = Input(memo.digest(path), path=str(path))
    inputs |= {"parent": parent} if parent else {}
    tokens = sum(shard.tokens for shard in shards) * settings.training.epochs
    running = settings.running
    layers = states[0].node.settings["layer_ids"] if states else []
    return Node(
        STAGE,
        "",
        {**settings.training.recipe(), "layer_ids": layers},
        inputs,
        tokens=tokens,
        knobs={"sharding": running.training_sharding, "checkpoint_every_steps": settings.training.checkpoint_every_steps},
        devices=running.training_devices,
    )


def _newest_checkpoint(state: Path, key: str, memo: Any) -> Path:
    """The newest whole checkpoint under a key, or its beginning; ``UserError`` where no training of that key left one."""
    from kimi_adapters.checkpoint_proof import is_whole

    folders = sorted((state.absolute() / "work").glob(f"{key}*/checkpoints"))
    found = sorted(folders[0].glob("step-*.safetensors")) if len(folders) == 1 else []
    for path in reversed(found):
        if memo.recall("a whole checkpoint 1", [path], partial(is_whole, path)):
            return path
        log.warning("training.continue_from: %s is torn and is passed over", path)
    why = "no training of that key was cut short after a checkpoint"
    if found or len(folders) > 1:
        why = "no checkpoint of that key is whole" if found else f"{len(folders)} keys begin so"
    raise UserError(f"training.continue_from is {key}, and under {state.absolute() / 'work'} {why}: correct the key")


def compute(job: Job) -> None:
    """Train; outputs: ``draft`` (speculators format), ``start`` (the trainable tensors before the first step), ``curves``.

    The draft is that of the step whose replay on held-out samples accepted most. Every rank of the child does this; the first
    one writes and tells.
    """
    from kimi_adapters.process_group import joined

    with joined(job.device) as ranks:
        _train(job, ranks)


def _train(job: Job, ranks: Any) -> None:
    import torch

    from kimi_adapters.draft import save_draft, verifier_rows
    from kimi_adapters.draft_vocabulary import DraftVocabulary
    from kimi_adapters.packing import PackedShards
    from kimi_adapters.recipe import Recipe
    from kimi_adapters.torch_file import write_tensors
    from kimi_adapters.trainer import train
    from kimi_adapters.weights import Checkpoint
    from tasks.choice_words import in_words
    from tasks.curves import curves_parquet, loader_rate, loader_share
    from tasks.shard_files import left_out, shard_files

    torch.set_num_threads(job.threads)
    layers = job.settings["layer_ids"]
    chosen = {name: value for name, value in job.settings.items() if name != "layer_ids"}
    recipe = Recipe.from_dict({**chosen, "checkpoint_every_steps": job.knobs["checkpoint_every_steps"]})
    checkpoint = Checkpoint(job.input("verifier"))
    vocabulary = DraftVocabulary.read(job.input("vocabulary") / VOCABULARY, checkpoint.config.vocab_size)
    data = PackedShards(
        shard_files(job),
        layers,
        recipe.pack_tokens,
        recipe.ttt_steps,
        recipe.seed,
        left_out(job),
        "train",
        recipe.noise,
        recipe.supervised,
    )

    def progress(entry: dict[str, Any]) -> None:
        note = f"loss {entry['loss']:.3f}, first token right {entry['acc_0']:.0%}, lr {entry['lr']:.1e}"
        job.progress(entry["step"], entry["total_steps"], "steps", note)
        job.metrics(entry["step"], {name: value for name, value in entry.items() if name not in ("step", "total_steps")})

    if ranks.first and data.cut_samples:
        job.say(f"{data.cut_samples:,} samples are longer than training.pack_tokens = {recipe.pack_tokens:,}, and are cut")
    rows = verifier_rows(checkpoint, vocabulary)
    recipe, parent, begun = _begin(job, recipe, checkpoint.config, rows, vocabulary)
    result = train(
        recipe,
        data,
        checkpoint.config,
        rows,
        vocabulary,
        job.scratch / "checkpoints",
        progress,
        ranks,
        job.knobs["sharding"],
        parent=parent,
        continue_from=job.paths.get("continued"),
        should_stop=job.stopping,
        on_choices=lambda choices: job.say(in_words(choices)),
    )
    if not ranks.first:
        return
    draft, start, curves = job.writer("draft"), job.writer("draft_start"), job.writer("curves")
    save_draft(result.model, draft.open)
    with start.open(START) as file:
        write_tensors(file, result.initial)
    curves.write(CURVES, curves_parquet(result.curves))
    tail = [entry["loss"] for entry in result.curves[-20:]]
    loss = round(sum(tail) / len(tail), 6)
    supervised = int(sum(entry["tokens"] for entry in result.curves))
    trained = sum(len(piece) for piece in data.pieces) * recipe.epochs
    replayed: dict[str, float] = {}
    if result.replayed_length is not None:
        replayed = {"replayed_length": round(result.replayed_length, 4), "replayed_samples": result.replayed_samples}
    if result.continued_at is not None:
        begun["continued_at"] = result.continued_at
    job.finish(
        {
            "draft": draft.seal(
                hidden_size=checkpoint.config.hidden_size,
                draft_vocab_size=vocabulary.size,
                layer_ids=layers,
                steps=len(result.curves),
                best_step=result.best_step,
                loss=loss,
                cut_samples=data.cut_samples,
                choices=result.choices,
                **replayed,
                **begun,
            ),
            "start": start.seal(seed=recipe.seed),
            "curves": curves.seal(
                steps=len(result.curves),
                tokens=supervised,
                loss=loss,
                loader_share=round(loader_share(result.curves), 4),
                loader_rate=round(loader_rate(result.curves)),
            ),
        },
        tokens=trained,
    )


def _begin(job: Job, recipe: Any, verifier: Any, rows: Any, vocabulary: Any) -> tuple[Any, Any, dict[str, int]]:
    """The recipe, the tensors to begin with and the facts of that: of the parent draft, where there is one."""
    if "parent" not in job.paths:
        return recipe, None, {}
    from kimi_adapters.draft_vocabulary import DraftVocabulary
    from kimi_adapters.inheritance import inherit
    from kimi_adapters.published_draft import read_published
    from kimi_adapters.warm_start import kept_tokens, parent_tensors

    published = read_published(job.input("parent"), verifier)
    before = published.vocabulary or DraftVocabulary(verifier.vocab_size, verifier.vocab_size)
    recipe = inherit(recipe, published.config, verifier, job.settings["layer_ids"])
    kept = len(kept_tokens(before, vocabulary)[0])
    return recipe, parent_tensors(published.tensors, before, rows, vocabulary), {"parent_tokens": kept}
