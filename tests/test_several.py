"""Options of several values: what stands in quotation marks is one value."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import finetune
from finetune import UserError
from finetune.data import labels
from finetune.data.several import as_text, joined, joined_pairs, pairs_in, values_in
from finetune.tasks import weights


@pytest.mark.parametrize(
    "values", [["a", "b"], ["one, two", "three"], ['a "quoted" word', "b"], ["x=1", "y,z=2"]]
)
def test_values_are_read_as_they_were_joined(values: list[str]) -> None:
    assert values_in(joined(values)) == values


def test_a_quoted_comma_is_part_of_a_value() -> None:
    assert values_in('"Food, drinks", service,,') == ["Food, drinks", "service"]
    assert values_in("a,,b", empty=True) == ["a", "", "b"]


def test_blanks_are_kept_in_quotation_marks_only() -> None:
    assert values_in('" a", "b " , c ,"d, "') == [" a", "b ", "c", "d, "]
    assert values_in('"", " ",a') == ["a"]
    assert labels.mapping('" Yes"=yes, No = no ,"a, b "=c') == {
        " Yes": "yes", "No": "no", "a, b ": "c"
    }  # fmt: skip
    assert labels.mapping('" Yes=yes","No = no"') == {" Yes": "yes", "No": "no"}


@pytest.mark.parametrize(
    "pair", [(" Yes", "yes"), ("Yes ", "yes"), ("a, b", "c"), (' "a" ', "b"), ("No", "no, not")]
)
def test_pairs_are_read_as_they_were_joined(pair: tuple[str, str]) -> None:
    text = joined_pairs([pair, ("x", "y")])
    assert [each for _, *each in pairs_in(text)] == [[*pair], ["x", "y"]]


def test_a_mapping_may_have_names_with_blanks() -> None:
    text = as_text({" Yes": "yes", "No": "no"}, "LABEL=NAME,LABEL=NAME", "--label_map")
    assert labels.mapping(text) == {" Yes": "yes", "No": "no"}
    text = as_text({" Yes": 3, "No": 1}, "NAME=WEIGHT,NAME=WEIGHT", "--class_weights")
    found = weights.of_classes(text, [" Yes", "No"], np.array([0, 1]))
    assert found is not None
    assert found.tolist() == [1.5, 0.5]
    for wrong in ({"Yes": " yes"}, {" ": "yes"}, [" Yes=yes"]):
        with pytest.raises(UserError, match="without blanks around them"):
            as_text(wrong, "LABEL=NAME,LABEL=NAME", "--label_map")


def test_check_advises_a_map_of_labels_with_blanks(tiny_model: str, tmp_path: Path) -> None:
    names = ["Yes", "No", "Yes", " Yes"]
    rows = [{"text": f"a fine day {n}", "label": names[n % 4]} for n in range(80)]
    pd.DataFrame(rows).to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    options = {"dataset": str(tmp_path / "a.jsonl"), "model": tiny_model}
    (advice,) = [
        each.message
        for each in finetune.check("text", **options).findings
        if "similar labels" in each.message
    ]
    (written,) = shlex.split(advice.partition("--label_map ")[2])
    assert written == '" Yes"=Yes'
    found = finetune.check("text", **options, label_map=written)
    assert sorted(found.splits["train"].classes) == ["No", "Yes"]
    assert not [each for each in found.findings if "similar labels" in each.message]
