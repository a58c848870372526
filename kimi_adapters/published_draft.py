"""A draft as others publish it, read into our configuration and tensor names; nothing of it is run or unpickled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.published_config import Sizes, published_files, read_published_config
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors

MAPS = ("d2t", "t2d")
# The engines take these two from the verifier where a draft comes without; the head only for the whole vocabulary.
FROM_VERIFIER = ("embed_tokens.weight", "lm_head.weight")
# Offsets that rise at every step are those of tokens of which no two are neighbours. Of n tokens scattered over V, n²/V pairs
# are neighbours, and of those that a text needs far more: where 32 are expected and none is there, they are ids.
_SCATTERED = 32
_UNUSED = ("verifier_norm.weight", "verifier_lm_head.weight")
_OLD_NAMES = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


@dataclass(frozen=True)
class PublishedDraft:
    """`config` and `tensors` as `draft.save_draft` writes them: ids and names ours, every field written out, tensors in
    the dtype they were stored in.

    Two things may be missing, as they may be in what is published: embed_tokens.weight (and the head of a draft of the
    whole vocabulary), which are then the verifier's; and the auxiliary ids (an empty list), which are then
    `layer_ids.default_layer_ids`. `vocabulary` is None where the draft proposes the whole vocabulary.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    vocabulary: DraftVocabulary | None


def read_published(folder: Path, verifier: Sizes | None = None) -> PublishedDraft:
    """The draft in `folder`: speculators' format, or the flat one of EAGLE and SGLang; one safetensors file or several.

    With `verifier` the draft is held against it, and ids that the directory leaves out or leaves open are settled.
    UserError: another architecture, a tensor missing, too many or of another shape, maps that contradict each other,
    weights that are pickled, quantized, or of another verifier.
    """
    config = read_published_config(folder, verifier)
    tensors = _renamed(_read_files(folder), folder, config["transformer_layer_config"]["num_hidden_layers"])
    _check_shapes(tensors, draft_shapes(config, _aux_count(config, tensors)), folder, whole=_is_whole(config))
    vocabulary = _vocabulary(config, tensors, folder)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in MAPS}
    if vocabulary is not None and vocabulary.d2t is not None and vocabulary.t2d is not None:
        tensors |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    config["dtype"] = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    return PublishedDraft(config, tensors, vocabulary)


def draft_shapes(config: Mapping[str, Any], aux_count: int) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor but d2t and t2d that a draft of our configuration holds, by name."""
    layer = config["transformer_layer_config"]
    hidden, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (layer["vocab_size"], hidden),
        "fc": (hidden, aux_count * hidden),
        "norm": (hidden,),
        "lm_head": (config["draft_vocab_size"], hidden),
        "layers.0.hidden_norm": (hidden,),
    }
    for number in range(layer["num_hidden_layers"]):
        read = 2 * hidden if number == 0 else hidden
        inside = {
            "self_attn.q_proj": (queries, read),
            "self_attn.k_proj": (keys, read),
            "self_attn.v_proj": (keys, read),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        if layer["model_type"] == "qwen3":
            inside |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
        shapes |= {f"layers.{number}.{name}": shape for name, shape in inside.items()}
    shapes |= {"input_norm": (aux_count * hidden,)} if config["norm_before_fc"] else {}
    shapes |= {f"fc_norm.{i}": (hidden,) for i in range(aux_count)} if config["fc_norm"] else {}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _read_files(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the directory; the files are those of the index, else all that end in .safetensors."""
    tensors: dict[str, Tensor] = {}
    for path in published_files(folder):
        if path.suffix != ".safetensors":
            continue
        with TensorFile(path) as file:
            twice = tensors.keys() & file.entries.keys()
            if twice:
                raise UserError(f"{folder} has {sorted(twice)[0]!r} in two of its files; keep the files of one draft there.")
            tensors |= read_tensors(file)
    return tensors


def _renamed(stored: Mapping[str, Tensor], folder: Path, num_layers: int) -> dict[str, Tensor]:
    """The tensors under our names: `midlayer.` is layer 0, a prefix `model.` goes, what no draft computes with too.

    SGLang gives the layers after the first a hidden_norm for their input_layernorm.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        ours = name.removeprefix("model.").replace("midlayer.", "layers.0.")
        for old, new in _OLD_NAMES.items():
            ours = ours.replace(old, new)
        if ours in _UNUSED or ours.endswith("rotary_emb.inv_freq"):
            continue
        if ours in tensors:
            raise UserError(f"{folder} has {ours!r} under two names; keep the tensors of one draft there.")
        tensors[ours] = tensor
    for number in range(1, num_layers):
        theirs, ours = (f"layers.{number}.{norm}.weight" for norm in ("hidden_norm", "input_layernorm"))
        if theirs in tensors and ours not in tensors:
            tensors[ours] = tensors.pop(theirs)
    return tensors


def _is_whole(config: Mapping[str, Any]) -> bool:
    return bool(config["draft_vocab_size"] == config["transformer_layer_config"]["vocab_size"])


def _aux_count(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """How many states are fused: by the ids, else by the width of `fc`."""
    ids = config["eagle_aux_hidden_state_layer_ids"]
    if ids or "fc.weight" not in tensors or tensors["fc.weight"].dim() != 2:
        return len(ids) or 3
    return int(tensors["fc.weight"].shape[1] // config["transformer_layer_config"]["hidden_size"])


def _check_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path, whole: bool) -> None:
    optional = set(FROM_VERIFIER if whole else FROM_VERIFIER[:1])
    missing = sorted(shapes.keys() - tensors.keys() - optional)
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing[:3])}, which an EAGLE-3 draft of its config.json has; complete it.")
    extra = sorted(tensors.keys() - shapes.keys() - set(MAPS))
    if extra:
        raise UserError(f"{folder} has {extra[0]!r}, which an EAGLE-3 draft of its config.json does not have; correct either.")
    for name in sorted(shapes.keys() & tensors.keys()):
        tensor = tensors[name]
        if tuple(tensor.shape) != shapes[name] or not tensor.is_floating_point():
            raise UserError(
                f"{folder} has {name} as {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} where its config.json "
                f"makes it {list(shapes[name])}; give a whole, unquantized draft."
            )


def _vocabulary(config: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> DraftVocabulary | None:
    """From d2t, an OFFSET in both formats; a t2d beside it must say the same."""
    size, target = config["draft_vocab_size"], config["transformer_layer_config"]["vocab_size"]
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None:
        if _is_whole(config):
            return None
        raise UserError(f"{folder} proposes {size} of {target} tokens and has no d2t that says which; complete it.")
    offsets = d2t.long().flatten()
    targets = torch.arange(len(offsets)) + offsets
    fits = len(targets) == size and _rise_below(targets, target)
    if t2d is None:
        holds_ids = _rise_below(offsets, target) and (not fits or size**2 > _SCATTERED * target)
        right = fits and not holds_ids
    else:
        named = t2d.bool().nonzero().flatten()
        holds_ids, right = torch.equal(named, offsets), fits and torch.equal(named, targets)
    if not right and holds_ids:
        raise UserError(f"{folder} has a d2t that holds ids, not offsets (target = i + d2t[i]); subtract i from each d2t[i].")
    if not right:
        raise UserError(
            f"{folder} has a d2t (target = i + d2t[i]) that does not name {size} rising ids below {target}, or a t2d that "
            "contradicts it; restore them."
        )
    found = DraftVocabulary.of_tokens(targets.tolist(), target)
    return found if found.d2t is not None else None


def _rise_below(ids: Tensor, target: int) -> bool:
    return bool(len(ids) and ids[0] >= 0 and ids[-1] < target and (ids.diff() > 0).all())
