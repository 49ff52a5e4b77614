"""What the paper *width* contains, in its order."""

from bulkedge.lab.studies.items import Item

LIMITS = "tests/limits/test_width.py::"

ITEMS: tuple[Item, ...] = (
    Item("Theorem 3.1", "attention at infinite width is Gaussian given its scores, which are Gaussian themselves"),
    Item(
        "Netsor with dot products",
        "dot products over the root of n are Gaussian scalars, independent of all vectors",
        tested=LIMITS + "test_covariance_given_the_scores",
    ),
    Item(
        "Master theorem",
        "moments of any program of the extended Netsor converge to those of its limit",
        tested=LIMITS + "test_moments_of_a_program_with_everything",
    ),
    Item("Mechanism 3", "the limit describes layers of practical width: the divergence falls as the width grows"),
    Item("Figure 1(a)", "density of a coordinate at finite width over that of the limit"),
    Item("Figure 1(b)", "Kullback-Leibler divergence between the two, over the width"),
    Item("Scaling 1/n", "with scores over n instead of its root attention is uniform and the output Gaussian"),
    Item("Infinitely many heads", "as heads are added the output approaches a Gaussian"),
    Item("Tail risk", "who assumes a Gaussian misjudges the probability of extreme activations"),
    Item("Appendix B.2", "heads that are narrow beside the width: what their dimension changes"),
    Item("Other activations", "whether the limit needs the clip that the paper's experiments use"),
    Item("Open question 1", "whether the non-Gaussian law persists as layers are stacked"),
    Item("Open question 2", "sequences that grow with the width"),
    Item("Open question 3", "what the non-Gaussian law does to training"),
    Item("Relative positions", "attention with relative position encodings"),
)
