"""Writes the golden values that `crates/bonfire-metrics/tests/golden.rs` holds the figures of classifiers against.

Run it as `OMP_NUM_THREADS=1 python classification.py` with NumPy and scikit-learn installed (2.4.6 and 1.9.1
when it was written). It writes, beside itself, classification.json with the versions and, for every entry of
CASES:

- classes, scores (sample by sample, multiples of 1/16, so that f32 has them exactly), targets;
- top_k: the accuracy for some k, by k;
- average: precision, recall and F1 by macro, micro and weighted average;
- per_class: the same and support of each class;
- confusion: [target, prediction, count] of all counts that are not 0;
- auroc: the area, and auroc_per_class, null for a class without positives or negatives.

Probabilities that are equal or not by a rounding error would make another area on another machine. Those
of two samples for a class must be further apart than MARGIN, relatively, unless the scores of the two only
differ by a constant.
"""

import json
import pathlib
import warnings

import numpy
import sklearn
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)

MARGIN = 1e-12
FILE = pathlib.Path(__file__).parent / "classification.json"


def draw(generator, samples, classes, step, signal, targets):
    """Scores in multiples of `step`, of which those of the targets are higher by `signal`."""
    scores = generator.normal(0.0, 1.5, (samples, classes))
    scores[numpy.arange(samples), targets] += signal
    return numpy.round(scores / step) * step


def two_classes(generator):
    targets = (generator.random(120) < 0.3).astype(int)
    scores = draw(generator, 120, 2, 1 / 4, 1.0, targets)
    # Of two equal scores scikit-learn takes the first class for top-1 of two classes, the last of more.
    scores[scores[:, 0] == scores[:, 1], 0] += 1 / 4
    return scores, targets


def three_classes(generator):
    targets = generator.integers(0, 3, 100)
    return draw(generator, 100, 3, 1 / 16, 1.5, targets), targets


def ties(generator):
    """Whole scores, most of which tie, some rows again or shifted; class 7 is there but never predicted."""
    targets = numpy.concatenate([numpy.arange(10), generator.integers(0, 10, 110)])
    scores = draw(generator, 120, 10, 1.0, 1.0, targets)
    scores[:, 7] = scores.min(axis=1) - generator.integers(0, 3, 120)
    scores[60:90] = scores[:30]
    scores[90:] = scores[30:60] + 2.0
    return scores, targets


def absent(generator):
    """Few samples: most classes have none."""
    targets = generator.integers(0, 1000, 24)
    targets[-4:] = targets[:4]
    return draw(generator, 24, 1000, 1 / 16, 3.0, targets), targets


CASES = {
    "two_classes": (two_classes, [1, 2, 5]),
    "three_classes": (three_classes, [1, 2, 3, 5]),
    "ties": (ties, [1, 2, 3, 5, 9]),
    "absent": (absent, [1, 5, 10]),
}


def main():
    warnings.filterwarnings("ignore", category=sklearn.exceptions.UndefinedMetricWarning)
    cases = {}
    for seed, (name, (make, ks)) in enumerate(CASES.items()):
        scores, targets = make(numpy.random.default_rng(seed))
        assert (numpy.float32(scores) == scores).all()
        cases[name] = figures(scores, targets, ks)
    assert not any(p == 7 for _, p, _ in cases["ties"]["confusion"])
    versions = {"numpy": numpy.__version__, "scikit-learn": sklearn.__version__}
    text = json.dumps({"versions": versions, "cases": cases}, separators=(",", ":"))
    FILE.write_text(text + "\n")


def figures(scores, targets, ks):
    classes = scores.shape[1]
    labels, predictions = list(range(classes)), scores.argmax(axis=1)

    def of(average):
        return precision_recall_fscore_support(
            targets, predictions, labels=labels, average=average, zero_division=0
        )

    per_class = [array.tolist() for array in of(None)]
    averages = {average: of(average)[:3] for average in ("macro", "micro", "weighted")}
    counts = confusion_matrix(targets, predictions, labels=labels)
    areas = areas_per_class(scores, targets)
    return {
        "classes": classes,
        "scores": plain(scores.ravel()),
        "targets": targets.tolist(),
        "top_k": {k: top_k(scores, targets, k) for k in ks},
        "average": {name: dict(zip(("precision", "recall", "f1"), a)) for name, a in averages.items()},
        "per_class": dict(zip(("precision", "recall", "f1", "support"), map(plain, per_class))),
        "confusion": [[int(t), int(p), int(counts[t, p])] for t, p in numpy.argwhere(counts)],
        "auroc": area(scores, targets, areas),
        "auroc_per_class": areas,
    }


def plain(values):
    """Whole numbers without the `.0`, which would be a third of the file."""
    return [int(value) if value == int(value) else float(value) for value in values]


def top_k(scores, targets, k):
    if scores.shape[1] == 2:
        # Takes one score a sample: above 0 is class 1.
        scores = scores[:, 1] - scores[:, 0]
        assert scores.min() < 0 and (scores != 0).all()
        return top_k_accuracy_score(targets, scores, k=k)
    return top_k_accuracy_score(targets, scores, k=k, labels=range(scores.shape[1]))


def softmax(scores):
    exponentials = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def areas_per_class(scores, targets):
    distinct = numpy.unique(scores - scores.max(axis=1, keepdims=True), axis=0)
    columns = numpy.sort(softmax(distinct), axis=0)
    assert (numpy.diff(columns, axis=0) > MARGIN * columns[1:]).all()
    areas = []
    for label, column in enumerate(softmax(scores).T):
        both = 0 < (targets == label).sum() < len(targets)
        areas.append(roc_auc_score(targets == label, column) if both else None)
    return areas


def area(scores, targets, areas):
    probabilities = softmax(scores)
    if scores.shape[1] == 2:
        return roc_auc_score(targets, probabilities[:, 1])
    labels = range(scores.shape[1])
    of_all = roc_auc_score(targets, probabilities, multi_class="ovr", average="macro", labels=labels)
    if None not in areas:
        return of_all
    # Without a figure for a class scikit-learn has none for all.
    assert numpy.isnan(of_all)
    return float(numpy.mean([area for area in areas if area is not None]))


if __name__ == "__main__":
    main()
