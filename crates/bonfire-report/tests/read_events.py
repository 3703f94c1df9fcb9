"""Prints as JSON what TensorBoard finds in a folder of event files, which is the argument.

The first accumulator gives the events as they were written, that of the plugins is what the
pages of TensorBoard are fed from.
"""

import json
import math
import sys

from tensorboard.backend.event_processing import (
    event_accumulator,
    plugin_event_accumulator,
)
from tensorboard.util import tensor_util


def number(value):
    """JSON has neither infinities nor NaN."""
    return float(value) if math.isfinite(value) else str(float(value))


def histogram(event):
    value = event.histogram_value
    return {
        "step": event.step,
        "wall_time": event.wall_time,
        "min": value.min,
        "max": value.max,
        "num": value.num,
        "sum": value.sum,
        "sum_squares": value.sum_squares,
        # As text, since not every reader of JSON takes the nearest float.
        "limits": [repr(limit) for limit in value.bucket_limit],
        "counts": value.bucket,
    }


def tensors(accumulator, tag):
    for event in accumulator.Tensors(tag):
        yield event, tensor_util.make_ndarray(event.tensor_proto)


def ascends(buckets):
    """Whether each bucket of a histogram ends where the next begins, from least to most."""
    lower, upper = buckets[:, 0], buckets[:, 1]
    return bool((lower <= upper).all() and (lower[1:] == upper[:-1]).all())


def main(folder):
    everything = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}
    raw = event_accumulator.EventAccumulator(folder, size_guidance=everything).Reload()
    shown = plugin_event_accumulator.EventAccumulator(
        folder, size_guidance={plugin_event_accumulator.TENSORS: 0}
    ).Reload()
    tags = raw.Tags()
    found = {
        "file_version": raw.file_version,
        "scalars": {
            tag: [
                {"step": e.step, "wall_time": e.wall_time, "value": number(e.value)}
                for e in raw.Scalars(tag)
            ]
            for tag in tags["scalars"]
        },
        "histograms": {
            tag: [histogram(e) for e in raw.Histograms(tag)] for tag in tags["histograms"]
        },
        "texts": {
            tag: [
                {"step": e.step, "text": a.item().decode(), "shape": list(a.shape)}
                for e, a in tensors(raw, tag)
            ]
            for tag in tags["tensors"]
        },
        "shown": {
            tag: {
                "plugin": shown.SummaryMetadata(tag).plugin_data.plugin_name,
                "steps": [e.step for e, _ in tensors(shown, tag)],
                "shapes": [list(a.shape) for _, a in tensors(shown, tag)],
                "ascends": all(ascends(a) for _, a in tensors(shown, tag) if a.ndim == 2),
            }
            for tag in shown.Tags()["tensors"]
        },
    }
    json.dump(found, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    main(sys.argv[1])
