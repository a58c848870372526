"""The verifier's own residual streams for a short text, by which an engine's states are recognised before any are drawn."""

from artifacts.stage import Node, Stage
from running.job import Job
from tasks.handles import Verifier
from tasks.settings import Settings

STAGE = Stage("layer_reference", module=__name__, libraries=("torch", "tokenizers"), optional=("triton",), device="accelerator")


def node(settings: Settings, verifier: Verifier) -> Node:
    """The one node: layer ids are not in its key, since every stream is kept (61 x 7,168 x 4 B a token for K2.5: 1.7 MB)."""
    chosen = {"compute_dtype": settings.hidden_states.compute_dtype}
    return Node(STAGE, "", chosen, {"verifier": verifier.input("embed", "layer", "numbers", "tokenizer")})


def compute(job: Job) -> None:
    """Take the text through the layers."""
    import torch

    from kimi_adapters.layer_proof import REFERENCE
    from kimi_adapters.own_streams import own_streams, proof_ids
    from kimi_adapters.weights import Checkpoint

    if job.device == "cpu":
        torch.set_num_threads(1)  # sums in an order that the number of cores does not change
    dtype = getattr(torch, job.settings["compute_dtype"])
    directory = job.input("verifier")
    found = own_streams(Checkpoint(directory), proof_ids(directory), job.device, dtype)
    writer = job.writer("layer_reference")
    with writer.open(REFERENCE) as file:
        found.write(file)
    layers, tokens, width = found.streams.shape
    job.finish({"reference": writer.seal(tokens=tokens, layers=layers - 1, hidden_size=width)}, tokens=tokens)
