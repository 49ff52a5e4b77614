"""What a shell completes: commands, names of laws and studies, their options, and the values of choices."""

import pytest
from click.shell_completion import ShellComplete

from bulkedge.cli import main
from bulkedge.cli.terminal import families
from bulkedge.lab.studies.base import studies


def completed(*words):
    shell = ShellComplete(main, {}, "bulkedge", "_BULKEDGE_COMPLETE")
    return [each.value for each in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ex"], ["explore"]),
        (["law", "mar"], ["marchenko-pastur"]),
        (["law", "--json", "mar"], ["marchenko-pastur"]),
        (["law", "marchenko-pastur", "--ra"], ["--ratio"]),
        (["law", "finite-head-law", "--qk-norm", "T"], ["True"]),
        (["law", "marchenko-pastur", "--ratio", "0"], []),
        (["sweep", "laws/"], sorted(name for name in studies() if name.startswith("laws/"))),
        (["reproduce", "law"], ["laws", *sorted(name for name in studies() if name.startswith("laws/"))]),
    ],
)
def test_what_is_completed(words, found):
    assert completed(*words) == found


def test_all_laws_are_offered():
    assert completed("law", "") == sorted(families())
