"""What the report says of evaluation prompts that the draft was trained on."""

import logging

from artifacts.store import Store
from flows.report_data import open_whole
from flows.train_draft import DraftRun
from tasks.prompts import read_prompts
from tasks.seen_prompts import trained_on
from tasks.settings import Settings

log = logging.getLogger("eyas")
_NAMED = 5


def seen_prompts(settings: Settings, store: Store, made: DraftRun) -> list[str]:
    """A warning, logged too, where ``acceptance.prompts`` judged the draft and some of them are its lessons; else nothing.

    It is no gate and in no key: the champion is judged on the same prompts. Masks that were collected are not looked into.
    """
    chosen = settings.acceptance
    if chosen.prompts is None or not (made.engines or any(one.node.entry == "compute_decoding" for one in made.judged)):
        return []
    prompts = read_prompts(chosen.prompts, min(chosen.max_prompts, settings.limit or chosen.max_prompts))
    outputs = [ref for one in (*made.corpora, *made.legacy) for ref in (one.outputs or {}).values()]
    folders = [open_whole(store, ref) for ref in outputs if ref.kind == "loss_masks"]
    seen = trained_on(prompts, [folder for folder in folders if folder])
    if not seen:
        return []
    more = ", …" if len(seen) > _NAMED else ""
    sentence = (
        f"{len(seen)} of {len(prompts)} evaluation prompts begin with a user turn that the draft was trained on "
        f"({', '.join(seen[:_NAMED])}{more}): what it accepts there is memory; take them out of acceptance.prompts"
    )
    log.warning("%s", sentence)
    return [f"**Warning: {sentence}.**"]
