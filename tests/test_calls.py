"""Wrong arguments get a clear answer: an error of the package that names the argument."""

import random

import pytest
from calls import GARBAGE, calls, outcome, survey

ACCEPTED = 0.01
"""Share of the calls that may end in an error that only the source explains."""


@pytest.mark.always
def test_one_wrong_argument():
    """Every public call, each argument in turn replaced by each piece of garbage."""
    counts, findings = survey()
    total = sum(counts.values())
    assert total > 6000
    assert len(findings) <= ACCEPTED * total, "\n".join(findings)


@pytest.mark.slow
def test_several_wrong_arguments(capsys):
    """Fifteen thousand calls with one to three arguments replaced at random; which of them is named does not matter."""
    rng = random.Random(2)
    targets = [(name, function, arguments) for name, (function, arguments) in calls().items()]
    counts, findings = {"clear": 0, "returned": 0, "unclear": 0}, []
    for _ in range(15_000):
        name, function, arguments = rng.choice(targets)
        chosen = rng.sample(sorted(arguments), min(len(arguments), rng.randint(1, 3)))
        wrong = {key: rng.choice(list(GARBAGE.values())) for key in chosen}
        found = outcome(function, arguments | wrong, chosen[0], wrong[chosen[0]])
        clear = found.startswith(("clear", "vague", "returned"))
        counts["returned" if found == "returned" else "clear" if clear else "unclear"] += 1
        if not clear:
            findings.append(f"{name}({', '.join(chosen)}): {found[:150]}")
    with capsys.disabled():
        print(  # noqa: T201 - the count is the result
            f"\n15000 calls with wrong arguments: {counts}"
        )
    assert counts["unclear"] <= ACCEPTED * 15_000, "\n".join(findings)
