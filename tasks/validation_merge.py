"""The merge of validation: what is left out and why, over all shards, and the report. Reads the checks, never states."""

import json

from artifacts.stage import Made, Node, Stage
from running.job import Job
from tasks.formats import ASIDE, QUARANTINE, REPORT, REPORT_TEXT
from tasks.settings import Settings

STAGE = Stage("validation", module=__name__, libraries=("numpy", "matplotlib"))


def node(settings: Settings, checks: list[Made]) -> Node:
    """The report over all shards, and what training and replay must leave out."""
    inputs = {f"check.{i}": made.input("check") for i, made in enumerate(checks)}
    chosen = settings.validation.model_dump(exclude={"read_share"})
    return Node(STAGE, "report", chosen, inputs, entry="merge")


def merge(job: Job) -> None:
    """Outputs: ``quarantine`` (all that training reads of it) and ``report``."""
    import numpy as np

    from tasks import validation_plots as plots
    from tasks import validation_report as text
    from tasks.checked_corpus import CheckedCorpus
    from tasks.sample_decisions import drops_of, norm_limits, reasons_of

    corpus = CheckedCorpus.read(job.inputs("check"))
    limits = norm_limits(corpus, job.settings)
    reasons = reasons_of(corpus, limits, job.settings)
    quarantined = np.logical_or.reduce(list(reasons.values()))
    dropped = drops_of(corpus, quarantined)
    out = np.logical_or.reduce(list(dropped.values()))
    quarantine = job.writer("quarantine")
    lists = {"quarantine": corpus.by_shard(quarantined), "drop": corpus.by_shard(out & ~corpus.copy)}
    quarantine.write(QUARANTINE, json.dumps(lists, sort_keys=True).encode())

    found = text.summarize(corpus, limits, reasons, dropped)
    report = job.writer("validation_report")
    report.write(REPORT, json.dumps(found, indent=1).encode())
    report.write(REPORT_TEXT, text.markdown(found).encode())
    with report.open(ASIDE) as file:
        for line in text.put_aside(corpus, reasons, dropped):
            file.write(line)
    report.write(text.NORMS, plots.norms_plot({name: corpus.arrays[f"norm.{name}"] for name in corpus.states}, limits))
    report.write(text.SUPERVISED, plots.supervised_plot(corpus.arrays["supervised"]))
    report.write(text.SLICES, plots.slices_plot(found["slices"]))
    report.write(text.REASONS, plots.reasons_plot(found["reasons"], found["dropped"], len(corpus)))
    facts = {name: found[name] for name in ("samples", "tokens", "supervised", "quarantined", "reasons", "dropped", "faults")}
    facts |= {name: found[name] for name in ("scored", "score", "agreement") if found[name] is not None}
    job.finish(
        {
            "quarantine": quarantine.seal(samples=found["quarantined"], dropped=int(out.sum())),
            "report": report.seal(
                **facts,
                rate=round(found["quarantined"] / max(1, found["samples"]), 6),
                norms={name: one["median"] for name, one in found["norms"].items()},
            ),
        }
    )
