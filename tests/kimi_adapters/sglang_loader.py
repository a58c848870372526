"""What SGLang 0.5.23 makes of a draft's directory, from reading srt/models/llama_eagle3.py, llama.py and deepseek_v2.py,
srt/model_executor/model_runner_components/spec_aux_hidden_state.py and srt/speculative/eagle_worker_v2.py.

No SGLang is run. It drops names that it does not know and leaves parameters that no file fills as they were made; here
both are told.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors

_LEGACY = {"midlayer": "layers.0", "aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
_STACKED = {".q_proj": ".qkv_proj", ".k_proj": ".qkv_proj", ".v_proj": ".qkv_proj", ".gate_proj": ".gate_up_proj"}
_STACKED |= {".up_proj": ".gate_up_proj"}


@dataclass(frozen=True)
class Loaded:
    """`rows` filled of each parameter; `dropped` names; draft id -> target id (None: the same ids)."""

    config: dict[str, Any]
    parameters: dict[str, tuple[int, ...]]
    rows: dict[str, int]
    dropped: list[str]
    hot_token_id: Tensor | None
    dtypes: set[torch.dtype]

    @property
    def unfilled(self) -> list[str]:
        """Parameters that the forward reads and the files do not fill: layers past the first read hidden_norm alone."""
        unread = {f"model.layers.{i}.input_layernorm.weight" for i in range(1, self.config["num_hidden_layers"])}
        return [name for name, shape in self.parameters.items() if self.rows.get(name, 0) != shape[0] and name not in unread]

    def captured(self, deepseek: bool) -> list[int]:
        """The layers whose incoming residual stream a verifier of that kind hands over."""
        ids = self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return list(ids) if deepseek and ids[0] != 1 else [k + 1 for k in ids]


def load(folder: Path) -> Loaded:
    """Read a directory as SGLang does. KeyError: a field that it reads without a default is missing."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    with TensorFile(folder / "model.safetensors") as file:
        stored = read_tensors(file)
    parameters, rows, dropped, hot = _parameters(config), dict[str, int](), [], None
    for stored_name, tensor in stored.items():
        name = stored_name
        for old, new in _LEGACY.items():
            name = name.replace(old, new)
        if "d2t" in name:
            hot = tensor + torch.arange(len(tensor))
            continue
        if "t2d" in name:
            continue
        for part, whole in _STACKED.items():
            name = name.replace(part, whole)
        name = name if name in parameters else f"model.{name}"
        if name not in parameters:
            dropped.append(stored_name)
            continue
        assert tensor.shape[1:] == parameters[name][1:], f"{stored_name} {list(tensor.shape)} for {parameters[name]}"
        rows[name] = rows.get(name, 0) + tensor.shape[0]
    return Loaded(config, parameters, rows, dropped, hot, {t.dtype for t in stored.values() if t.is_floating_point()})


def _parameters(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of its modules' parameters on one GPU."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    read = config.get("target_hidden_size", hidden)  # null is taken as it is, and fails
    count = len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.fc.weight": (hidden, read * count),
        "model.norm.weight": (hidden,),
    }
    shapes |= {"model.input_norm.weight": (read * count,)} if config.get("norm_before_fc") else {}
    shapes |= {f"model.fc_norm.{i}.weight": (read,) for i in range(count)} if config.get("fc_norm") else {}
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        shapes |= {
            f"{prefix}self_attn.qkv_proj.weight": (queries + 2 * keys, 2 * hidden if i == 0 else hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}mlp.gate_up_proj.weight": (2 * inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
        }
        norms = ("input_layernorm", "post_attention_layernorm", "hidden_norm")
        shapes |= {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
    return shapes
