"""Export: a directory that the serving engine loads, checked by loading it again."""

import json
from typing import Any

from artifacts.stage import Made, Node, Stage
from errors import UserError
from running.job import Job
from tasks.handles import Verifier
from tasks.settings import Settings

STAGE = Stage("export", module=__name__, libraries=("torch", "transformers", "speculators"))


def node(settings: Settings, draft: Made, verifier: Verifier) -> Node:
    """The one node; the verifier's rows are read by the check alone."""
    chosen = {
        "engine": settings.export.engine,
        "dtype": settings.export.dtype,
        "verifier_name": verifier.name,
        "k": settings.acceptance.k,
    }
    return Node(
        STAGE,
        "",
        chosen,
        {"draft": draft.input("draft"), "verifier": verifier.input("embed", "norm", "lm_head", "numbers")},
    )


def compute(job: Job) -> None:
    """Write the directory in the engine's dtype, load it through speculators and compare its drafts with our own runner's."""
    import torch

    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.torch_file import read_tensors, write_tensors

    source = job.input("draft")
    config = json.loads((source / "config.json").read_text())
    dtype = getattr(torch, job.settings["dtype"])
    with TensorFile(source / "model.safetensors") as file:
        tensors = read_tensors(file)
    config["dtype"] = job.settings["dtype"]
    config["speculators_config"]["verifier"]["name_or_path"] = job.settings["verifier_name"]
    writer = job.writer("export")
    writer.write("config.json", (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
    with writer.open("model.safetensors") as file:
        write_tensors(file, tensors, dtype, {"format": "pt"})
    writer.write("README.md", card(config, job.settings).encode())
    compared = _check_reload(job, writer.folder)
    parameters = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    sealed = writer.seal(
        engine=job.settings["engine"], dtype=job.settings["dtype"], parameters=parameters, reload_checked=compared
    )
    job.finish({"export": sealed})


def card(config: dict[str, Any], settings: dict[str, Any]) -> str:
    """The model card: what it is and how it is served."""
    layers = config["eagle_aux_hidden_state_layer_ids"]
    speculative = json.dumps({"method": "eagle3", "model": "THIS_DIRECTORY", "num_speculative_tokens": settings["k"]})
    return (
        f"# EAGLE-3 draft for {settings['verifier_name']}\n\n"
        f"Draft vocabulary {config['draft_vocab_size']}, auxiliary layers {layers} (states that enter them), "
        f"{settings['dtype']}, speculators format.\n\n"
        f"```\nvllm serve {settings['verifier_name']} --speculative-config '{speculative}'\n```\n"
    )


def _check_reload(job: Job, folder: Any) -> int:
    """Load the export through speculators and count positions whose drafts equal our runner's; all must."""
    import torch

    from kimi_adapters.draft_reload import first_drafts

    generator = torch.Generator().manual_seed(0)
    reloaded, ours = first_drafts(folder, job.input("verifier"), positions=64, generator=generator)
    if not torch.equal(reloaded, ours):
        raise UserError(
            f"the exported draft gives other drafts than the trained one at {int((reloaded != ours).sum())} "
            "positions: report this"
        )
    return int(ours.numel())
