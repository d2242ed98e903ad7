"""Tables are Markdown."""

import pytest

from tfmirror import tables


def test_a_table_has_a_line_for_titles_and_for_each_row():
    assert tables.markdown(["a", "b c"], [[1, "x"], (2.5, None)]) == (
        "| a | b c |\n| --- | --- |\n| 1 | x |\n| 2.5 | None |"
    )


def test_a_table_printed_row_by_row_is_the_same():
    titles, rows = ["a", "b"], [[1, 2], [3, 4]]
    lines = [tables.head(titles), *(tables.row(cells) for cells in rows)]
    assert "\n".join(lines) == tables.markdown(titles, rows)


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([0.98, 0.9, 0.99123], 4, "0.9800 (0.9000 to 0.9912)"),
        ([7.0], 1, "7.0 (7.0 to 7.0)"),
    ],
)
def test_median_and_range(values, digits, expected):
    assert tables.median_and_range(values, digits) == expected
