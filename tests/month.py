"""A month of traffic in four files, and a verifier whose next word follows from the word before, so that a draft of it is
trained in seconds and a test can foresee what it learns.

The draft's vocabulary holds the tokens that are used most: a file that floods it with new words takes a language out of it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flows.outcome import Outcome
from flows.planning import open_host
from flows.retrain import retrain
from kimi_adapters.torch_file import write_tensors
from running.host import Host
from tasks.settings import Settings
from tests.inprocess import InProcess

WIDTH, LAYERS = 64, 4
LATIN, GREEK, FLOOD = range(1000, 1031), range(2000, 2011), range(3000, 3081)  # token ids, each followed by the next
TEXT = {LATIN: "what people say of", GREEK: "τι λένε για", FLOOD: "what people say of"}
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": WIDTH // 4,
    "vocab_size": 49152,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write_verifier(folder: Path, tokenizer: Path) -> Path:
    """A Llama whose layers add nothing and whose head asks for the token after the one that it has read."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(7)
    embed = torch.randn(SIZES["vocab_size"], WIDTH, generator=generator)
    embed *= 0.5 + torch.rand(len(embed), 1, generator=generator)
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": torch.ones(WIDTH)}
    tensors["lm_head.weight"] = torch.nn.functional.normalize(embed, dim=1).roll(1, dims=0) * 2
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(WIDTH)
        for matrix in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{name}.self_attn.{matrix}.weight"] = torch.zeros(WIDTH, WIDTH)
        for matrix in ("gate_proj", "up_proj"):
            tensors[f"{name}.mlp.{matrix}.weight"] = torch.zeros(2 * WIDTH, WIDTH)
        tensors[f"{name}.mlp.down_proj.weight"] = torch.zeros(WIDTH, 2 * WIDTH)
    with open(folder / "model.safetensors", "wb") as file:
        write_tensors(file, tensors)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **SIZES, "eos_token_id": 2}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    return folder


def _land(folder: Path, name: str, *parts: tuple[range, int]) -> None:
    """Write a file of conversations as they were served: the text tells the language, the ids are what is learned. ``parts``:
    a language and how many conversations of it."""
    folder.mkdir(exist_ok=True)
    with open(folder / f"{name}.jsonl", "w") as file:
        for part, (language, count) in enumerate(parts):
            for number in range(count):
                turns = [
                    {"role": "user", "content": f"{TEXT[language]} {name} {part} {number}"},
                    {"role": "assistant", "content": TEXT[language]},
                ]
                ids = {"prompt_token_ids": [1, 5000 + number, language[0]], "token_ids": list(language[1:])}
                file.write(json.dumps({"id": f"{name} {part} {number}", "messages": turns, **ids}) + "\n")


def good(folder: Path) -> None:
    """Two languages."""
    _land(folder, "week1", (LATIN, 60), (GREEK, 40))


def wrong_template(folder: Path) -> None:
    """What another model's template made of its turns."""
    turns = [{"role": "<|start_header_id|>user", "content": "?"}, {"role": "<|start_header_id|>assistant", "content": "!"}]
    (folder / "week2.jsonl").write_text(json.dumps({"messages": turns}) + "\n")


def flood(folder: Path) -> None:
    """So many new words of one language that the other has no place in the vocabulary."""
    _land(folder, "week3", (FLOOD, 50))


def good_again(folder: Path) -> None:
    """More of both languages, so that both have their place again."""
    _land(folder, "week4", (LATIN, 40), (GREEK, 60))


class Retrained(NamedTuple):
    """How a retraining ended, and how many nodes of each stage ran."""

    outcome: Outcome
    ran: dict[str, int]


class Month:
    """A folder in which files land, and retraining over it in the test's own process."""

    def __init__(self, root: Path, verifier: Path) -> None:
        self.folder = root / "landed"
        self.settings = Settings.model_validate(
            {
                "verifier": {"directory": str(verifier)},
                "data": {"conversations": [str(self.folder)]},
                "corpus": {"max_length": 128, "shard_tokens": 2048, "held_out": 0.25},
                "hidden_states": {"layer_ids": [1, 2, 3], "state_dtype": "float32"},
                "validation": {"max_repetition": 1.0},
                "vocabulary": {"size": 127},
                "training": {"epochs": 5, "lr": 5e-3, "pack_tokens": 256, "ttt_steps": 2, "replay_every_steps": 0},
                "acceptance": {"k": 2},
                "export": {"dtype": "float32"},
                "gates": {"min_coverage": 0.5},
                "promotion": {"ask": "never", "max_slice_loss": 0.3, "min_samples": 5},
                "store": {"path": str(root / "store"), "state": str(root / "state")},
            }
        )
        self.host: Host = open_host(self.settings)
        self._runs = 0

    def retrain(
        self,
        land: Callable[[Path], None] | None = None,
        before: Callable[[Settings, Any], Any] = lambda settings, left_out: None,
        **training: Any,
    ) -> Retrained:
        """Let a file land and retrain; ``before`` is called when the champion has been read and nothing costly has run."""
        if land:
            land(self.folder)
        recipe = self.settings.training.model_copy(update=training)
        settings = self.settings.model_copy(update={"training": recipe})
        walk = self.host.walk()
        self._runs += 1
        with self.host.noted_run(f"run-{self._runs:04}", "month", walk), self.host.store.workspace() as workspace:
            run = InProcess(walk, workspace)
            return Retrained(retrain(settings, run, self.host, before=before), run.ran)
