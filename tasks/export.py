"""Export: a directory that the serving engine loads, a node an engine, checked by reading it back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Made, Node, Pending, Stage
from errors import UserError
from running.job import Job
from tasks.card import SHOWN, card, data_digests
from tasks.formats import ACCEPTANCE
from tasks.handles import Verifier
from tasks.settings import Settings

STAGE = Stage("export", module=__name__, libraries=("torch", "transformers", "speculators"))
_POSITIONS = 64  # at which speculators' model and our own runner must draft the same


def check(settings: Settings, verifier: Verifier, layer_ids: list[int]) -> None:
    """Refuse a draft that an engine of ``export.engines`` would not serve as it is trained, before it is."""
    from kimi_adapters.engine_rules import check_engine

    recipe, family = settings.training.model_dump(), verifier.facts["family"] if verifier.facts else None
    for engine in settings.export.engines:
        check_engine(engine, recipe, layer_ids, family, settings.export.dtype, _stretch(settings, verifier))


def _stretch(settings: Settings, verifier: Verifier) -> dict[str, Any]:
    """The draft's rope_parameters where they are the verifier's; empty where they are not, or its folder is not known."""
    from kimi_adapters.config import read_config
    from kimi_adapters.rope_parameters import rope_parameters

    if settings.training.rope == "plain" or verifier.source is None or verifier.source.path is None:
        return {}
    target = read_config(verifier.source.path)
    return rope_parameters(target, settings.training.rope_theta or target.rope_theta, stretched=True)


def nodes(settings: Settings, draft: Made, judged: list[Made], verifier: Verifier) -> list[Node]:
    """A node an engine. Of acceptance it reads the numbers that the card shows: another way to the same ones reruns nothing."""
    inputs = {"draft": draft.input("draft"), "verifier": verifier.input("embed", "norm", "lm_head", "numbers")}
    inputs |= {f"acceptance.{i}": _numbers(made) for i, made in enumerate(judged)}
    shared = {
        "dtype": settings.export.dtype,
        "verifier_name": verifier.name,
        "k": settings.acceptance.k,
        "recipe": draft.node.settings,
        "data": data_digests(draft.node),
    }
    return [Node(STAGE, engine, {"engine": engine, **shared}, inputs) for engine in settings.export.engines]


def _numbers(made: Made) -> Input | Pending:
    ref = made.ref("acceptance")
    if ref is None:
        return Pending(made.node.label)
    return Input(digest_bytes(canonical_json({name: ref.facts.get(name) for name in SHOWN})), ref=ref)


def compute(job: Job) -> None:
    """Write the directory in the engine's format and dtype, with its card; then read it back."""
    import torch

    from kimi_adapters.config import read_config
    from kimi_adapters.draft_formats import sglang_config, sglang_names, vllm_config
    from kimi_adapters.engine_rules import check_engine
    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.torch_file import read_tensors, write_tensors

    engine, dtype, name = (job.settings[key] for key in ("engine", "dtype", "verifier_name"))
    config = json.loads((job.input("draft") / "config.json").read_text())
    layer, ids = config["transformer_layer_config"], config["eagle_aux_hidden_state_layer_ids"]
    family = read_config(job.input("verifier")).family
    with TensorFile(job.input("draft") / "model.safetensors") as file:
        tensors = read_tensors(file)
    own = {"layer": layer["model_type"], "train_embeddings": not _embeds_as(tensors, job.input("verifier"))}
    check_engine(engine, {**config, **own}, ids, family, dtype, layer["rope_parameters"])
    if engine == "sglang":
        values, named = sglang_config(config, dtype), sglang_names(tensors)
    else:
        values, named = vllm_config(config, dtype, name, family), tensors
    writer = job.writer("export")
    with writer.open("config.json") as text:
        text.write((json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
    with writer.open("model.safetensors") as weights:
        write_tensors(weights, named, getattr(torch, dtype), {"format": "pt"})
    judged = [json.loads((folder / ACCEPTANCE).read_text()) for folder in job.inputs("acceptance")]
    writer.write("README.md", card(config, job.settings, job.digests["draft"], judged).encode())
    compared = _check_read_back(writer.folder, config, tensors, getattr(torch, dtype))
    if engine == "vllm":
        _check_speculators(writer.folder, job.input("verifier"))
    parameters = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    served = digest_bytes(canonical_json([text.close(), weights.close()]))  # what an engine reads: all but the card
    sealed = writer.seal(engine=engine, dtype=dtype, parameters=parameters, reload_checked=compared, served=served)
    job.finish({"export": sealed})


def _embeds_as(tensors: Mapping[str, Any], verifier: Path) -> bool:
    """Whether the draft embeds tokens as the verifier does."""
    import torch

    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.tensor_names import role_of
    from kimi_adapters.weights import torch_dtype, weight_files

    own = tensors["embed_tokens.weight"]
    for path in weight_files(verifier):
        with TensorFile(path) as file:
            for name in (name for name in file.entries if role_of(name) == "embed"):
                theirs = torch.empty(file.entry(name).shape, dtype=torch_dtype(file.entry(name).dtype))
                file.read_into(name, theirs.view(torch.uint8).numpy().data)
                return torch.equal(own, theirs.to(own.dtype))
    return False


def _check_read_back(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: Any) -> int:
    """The export as a published draft is read must be the trained one: how many tensors are, bit for bit."""
    import torch

    from kimi_adapters.published_draft import read_published

    back = read_published(folder)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    same = ("transformer_layer_config", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size", *flags)
    wrong = [name for name in same if back.config[name] != config[name]]
    for name, tensor in tensors.items():
        stored = tensor.to(dtype) if tensor.is_floating_point() else tensor
        wrong += [] if name in back.tensors and torch.equal(back.tensors[name], stored) else [name]
    if wrong or back.tensors.keys() != tensors.keys():
        raise UserError(f"the exported draft differs from the trained one in {', '.join(wrong) or 'its tensors'}: report this")
    return len(tensors)


def _check_speculators(folder: Path, verifier: Path) -> None:
    """speculators' own model, loaded from the export, must draft what our runner drafts."""
    import torch

    from kimi_adapters.draft_reload import first_drafts

    reloaded, ours = first_drafts(folder, verifier, _POSITIONS, torch.Generator().manual_seed(0))
    if not torch.equal(reloaded, ours):
        raise UserError(
            f"the exported draft gives other drafts than the trained one at {int((reloaded != ours).sum())} "
            "positions: report this"
        )
