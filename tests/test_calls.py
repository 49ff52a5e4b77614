"""Wrong arguments get a clear answer: an error that names the argument; and nothing is silently wrong."""

import random

import pytest
from calls import GARBAGE, calls, outcome, survey

ACCEPTED = 0.01
"""Share of the calls that may end in an error that only the source explains."""
LONG = {
    "SharpHeadLaw.cdf", "SharpHeadLaw.ppf", "heads.ChannelLaw.cdf", "heads.ChannelLaw.ppf", "models.scan",
    "models.capture", "models.stream", "models.probe", "models.load_model", "nn.initial_scales", "rectangular_add",
    "SoftmaxAttention.outliers", "CausalHeadLaw.finite_edge", "nn.initialise_stack",
    "recovery.table_spectrum", "models.embedding_table",
}  # fmt: skip
"""Callables whose good call takes a tenth of a second or more: `make test-slow` alone has them."""


@pytest.mark.always
def test_one_wrong_argument():
    """A sample of all public calls, every ninth replacement of each argument."""
    counts, findings = survey(every=9, only=sorted(calls().keys() - LONG)[::5])
    total = sum(counts.values())
    assert total > 500
    assert len(findings) <= ACCEPTED * total, "\n".join(findings)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_every_wrong_argument(start, capsys):
    """All public calls, each argument in turn replaced by each wrong value: about 34 000 calls, in four parts."""
    counts, findings = survey(every=4, start=start)
    with capsys.disabled():
        print("\n", counts, *findings, sep="\n")  # noqa: T201 - the count is the result
    assert len(findings) <= ACCEPTED * sum(counts.values())
    assert not [each for each in findings if ": silent" in each]


@pytest.mark.slow
def test_several_wrong_arguments():
    """Five thousand calls with one to three arguments replaced at random; which of them is named does not matter."""
    drawn, findings = random.Random(2), []
    targets = [each for each in calls().items() if each[0] not in LONG]
    for _ in range(5000):
        name, (function, thunks) = drawn.choice(targets)
        chosen = drawn.sample(sorted(thunks), min(len(thunks), drawn.randint(1, 3)))
        wrong = {key: drawn.choice(list(GARBAGE.values())) for key in chosen}
        found, _ = outcome(function, {key: make() for key, make in thunks.items()} | wrong, chosen[0])
        if not found.startswith(("clear", "vague", "returned", "warned")):
            findings.append(f"{name}({', '.join(chosen)}): {found[:150]}")
    assert len(findings) <= ACCEPTED * 5000, "\n".join(findings)
