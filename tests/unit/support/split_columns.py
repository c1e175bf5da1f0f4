"""The records of a Spark task's split as columns."""

from local.records.isolation import without_aborted
from tiered.read.reader import within
from tiered.spark.source.task import split_steps


def split_columns(store, split, **how):
    def build(sections, aborted, first, end):
        yield within(without_aborted(sections.columns(), aborted), first, end)

    return split_steps(store, split, build, **how)
