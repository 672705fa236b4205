"""Options of several values: what stands in quotation marks is one value."""

import pytest

from finetune.data.several import joined, values_in


@pytest.mark.parametrize(
    "values", [["a", "b"], ["one, two", "three"], ['a "quoted" word', "b"], ["x=1", "y,z=2"]]
)
def test_values_are_read_as_they_were_joined(values: list[str]) -> None:
    assert values_in(joined(values)) == values


def test_a_quoted_comma_is_part_of_a_value() -> None:
    assert values_in('"Food, drinks", service,,') == ["Food, drinks", "service"]
    assert values_in("a,,b", empty=True) == ["a", "", "b"]
