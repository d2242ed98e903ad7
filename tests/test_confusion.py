"""Confusion matrices: counted by hand, shown, written and read."""

import numpy as np
import pytest

from tfmirror.confusion import Confusion
from tfmirror.reporting import confusion_plot, plots

# 5 of class 0, of which 3 are right; none of class 2, and none taken for class 1.
COUNTS = np.array([[3, 0, 2], [1, 0, 3], [0, 0, 0]], np.int64)
FOUND = Confusion(COUNTS, ("shirt", "dress"))


def test_shares_are_of_a_class_and_of_what_is_taken_for_it():
    shirt, dress, third = FOUND.classes
    assert (shirt.num_examples, shirt.num_predicted, shirt.num_correct) == (5, 4, 3)
    assert (shirt.accuracy, shirt.precision) == (3 / 5, 3 / 4)
    assert (dress.accuracy, dress.precision) == (0.0, None)
    assert (third.accuracy, third.precision) == (None, 0.0)
    assert (FOUND.num_examples, FOUND.num_correct) == (9, 3)


def test_the_worst_confusions_come_first_and_what_is_right_is_none():
    assert FOUND.worst(2) == [(1, 2, 3), (0, 2, 2)]
    assert FOUND.worst(9) == [(1, 2, 3), (0, 2, 2), (1, 0, 1)]


def test_the_tables_of_a_few_classes():
    assert FOUND.lines() == [
        "class    examples  correct  accuracy  precision",
        "0 shirt         5        3    0.6000     0.7500",
        "1 dress         4        0    0.0000          –",
        "2               0        0         –     0.0000",
        "",
        "rows: class; columns: what it was taken for",
        "         0  1  2",
        "0 shirt  3  0  2",
        "1 dress  1  0  3",
        "2        0  0  0",
    ]


def test_of_many_classes_the_worst_confusions_are_listed():
    counts = np.eye(21, dtype=np.int64)
    counts[20, 7] = 1234
    lines = Confusion(counts, ()).lines()
    assert lines[-2:] == [
        "most frequent confusions  taken for  examples",
        "20                        7             1,234",
    ]


def test_names_cannot_garble_a_terminal():
    labels = Confusion(COUNTS, ("a\x1b[2J\nb", "x" * 99, "2")).labels
    assert labels[0] == "0 a?[2J?b" and len(labels[1]) == 24
    assert all(label.isprintable() for label in labels)


def test_what_is_written_is_read(tmp_path):
    value = FOUND.to_json()
    assert value["classes"][0] == {
        "class": 0, "name": "shirt", "num_examples": 5, "num_predicted": 4,
        "num_correct": 3, "accuracy": 0.6, "precision": 0.75,
    }  # fmt: skip
    assert value["confusion_matrix"] == [[3, 0, 2], [1, 0, 3], [0, 0, 0]]
    again = Confusion.from_json(value)
    np.testing.assert_array_equal(again.counts, COUNTS)
    assert again.labels == FOUND.labels


@pytest.mark.parametrize(
    "changes",
    [
        {"confusion_matrix": [[1, 2], [3, 4]]},
        {"confusion_matrix": [[1, 2, 0], [3, 4, 0], [0, -1, 0]]},
        {"confusion_matrix": [[1, 2, 0], [3, 4, 0], [0, 0.5, 0]]},
        {"confusion_matrix": [[1, 2, 0], [3, 4], [0]]},
        {"confusion_matrix": 3},
        {"classes": []},
        {"classes": [{"name": 1}, {"name": "b"}, {"name": "c"}]},
        {"classes": None},
    ],
)
def test_anything_else_is_refused(changes):
    with pytest.raises(ValueError, match="confusion matrix|no text"):
        Confusion.from_json(FOUND.to_json() | changes)


@pytest.mark.parametrize("num_classes", [3, 30, 70])
def test_a_picture_shows_counts_and_names_where_they_fit(num_classes):
    counts = np.diag(np.arange(1, num_classes + 1))
    counts[0, 1] = 7
    drawn = confusion_plot.draw(Confusion(counts, ("$_$",)))
    ax = drawn.axes[0]
    written = sorted(int(text.get_text()) for text in ax.texts)
    assert written == ([1, 2, 3, 7] if num_classes == 3 else [])
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert ("0 $_$" in labels) == (num_classes <= 60)
    (image,) = ax.images
    assert image.get_array()[0, 1] == 7 / 8 and image.get_array()[2, 2] == 1
    assert plots.to_png(drawn).startswith(b"\x89PNG")
