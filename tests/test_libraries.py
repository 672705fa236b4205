"""The table of what is relied on of the libraries is true of the installed ones."""

import re

import pytest

from tests.conftest import ROOT
from tests.library_members import MEMBERS, Member

BEHAVIOUR = {
    name
    for path in (ROOT / "tests").glob("test_library_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.M)
}
#: What stands in our files for a member that they do not import.
SPELLED = {
    "PREFIX_CHECKPOINT_DIR": "checkpoint",
    "TRAINER_STATE_NAME": "trainer_state.json",
    "camelcase_to_snakecase": "my_reviews",
    "DATASET_INFO_FILENAME": "dataset_info.json",
    "repo_folder_name": "models--",
}


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_is_whole() -> None:
    assert len(MEMBERS) >= 95
    assert len({member.path for member in MEMBERS}) == len(MEMBERS)
    assert {member.owner.partition(".")[0].partition(":")[0] for member in MEMBERS} >= {
        "transformers",
        "accelerate",
        "torch",
        "datasets",
        "evaluate",
    }


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.path)
def test_a_member_is_there_and_used(member: Member) -> None:
    assert member.problems() == []
    assert member.checks
    assert member.reason
    spelled = SPELLED.get(member.name, member.name)
    for user in member.users.split():
        assert spelled in (ROOT / user).read_text(encoding="utf-8"), user
    assert not member.behaviour or member.behaviour in BEHAVIOUR
    assert member.kind != "hook" or {"source", "behaviour"} & set(member.checks)


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (Member("member", "no_such_library", "x", "", ""), "no_such_library:x is not there"),
        (Member("member", "torch.cpu", "_gone", "", ""), "torch.cpu:_gone is not there"),
        (Member("member", "torch", "save", "", "", "obj path"), "does not take path"),
        (Member("hook", "torch.nn:DataParallel", "train", "", "", "on"), r"takes \['mode'\]"),
        (
            Member("mention", "torch", "_gone", "", "", source="torch.nn:Module.eval"),
            "does not name _gone",
        ),
        (
            Member("mention", "torch", "eval", "", "", source="torch.nn:Module.train"),
            "does not name eval",
        ),
    ],
)
def test_what_is_missing_is_told(member: Member, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        assert not (found := member.problems()), found
