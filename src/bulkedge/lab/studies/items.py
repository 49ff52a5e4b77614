"""What the papers contain, item by item, and what became of each: a claim, a test, or a reason why neither.

Claims name items in their ``place``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan
from typing import NamedTuple, TypeVar

from bulkedge.lab.studies.claims import Claim
from bulkedge.support.errors import DomainError

T = TypeVar("T")
PAPERS = {
    "equivalence": "Gaussian Equivalence for Self-Attention: Asymptotic Spectral Analysis of Attention Matrix",
    "recovery": "How Does Attention Help? Insights from Random Matrices on Signal Recovery from Sequence Models",
    "width": "Infinite-Width Limit of a Single Attention Layer: Analysis via Tensor Programs",
    "propagation": "Mind the Gap: a Spectral Analysis of Rank Collapse and Signal Propagation in Transformers",
}
"""The papers by the names of their folders, with their titles."""
OURS = "ours"
DENIES = "not "
"""Before the name of an item that a claim contradicts."""


@dataclass(frozen=True)
class Item:
    """A numbered piece of a paper."""

    name: str
    """As the paper calls it: ``"Theorem 3.2"``."""
    says: str
    tested: str = ""
    """The test that checks it where that needs no sampling, ``"tests/laws/test_x.py::test_y"``."""
    not_done: str = ""
    """Why it is neither claimed nor tested."""
    corrected: str = ""
    """What its printed form has wrong, which is then the rival of claims that name it, as ``as printed``."""
    asks: bool = False
    """Whether the paper asks and does not answer: claims then answer in its place, and the item stays open."""
    coarse: str = ""
    """Why none of its claims detects that a number is wrong by a tenth, where none does."""


POOLED, LIMITS = "tests/ensembles/test_pooled.py", "tests/limits/test_width.py"
EQUIVALENCE, PROPAGATION, RECOVERY = (
    f"tests/studies/test_{paper}.py" for paper in ("equivalence", "propagation", "recovery")
)
UNKNOWN = "our copy of the paper has its number, but not its statement"
CLASS_MEANS = "class means of a finite table are means of noisy rows, which raises the outlier and lowers the alignment"
SMALLER_ROOT = "the outlier is the smaller root of equation 7, where the text says the largest"

ITEMS: dict[str, tuple[Item, ...]] = {
    # the text that we have carries the abstract, captions, a summary, and of most statements the number alone
    "equivalence": (
        Item("Remark 2.1", "of the section on the setting", not_done=UNKNOWN),
        Item("Remark 2.2", "of the section on the setting", not_done=UNKNOWN),
        Item("Definition 2.3", "of the section on the setting", not_done=UNKNOWN),
        Item("Remark 2.4", "of the section on the setting", not_done=UNKNOWN),
        Item("Remark 3.1", "of the section with the main result", not_done=UNKNOWN),
        Item(
            "Theorem 3.2",
            "the singular values of sqrt(T) (A - uu') have the limit law of the linear model sqrt(theta_2) S/sqrt(T) + "
            "sqrt(theta_1 - theta_2) W/sqrt(T), theta_1 = exp(beta^2) - 1 and theta_2 = beta^2",
        ),
        Item("Remark 3.3", "reductions of the theorem", not_done=UNKNOWN),
        Item(
            "Edge bound",
            "the norm of the linear model is beyond 2 sqrt(exp(beta^2) - 1): the bulk of the squares ends beyond "
            "4 (exp(beta^2) - 1), the edge of Marchenko-Pastur",
            tested=f"{EQUIVALENCE}::test_the_edge_is_beyond_that_of_marchenko_pastur",
        ),
        Item("Lemma 4.1", "the row normalisers concentrate at the scale d^(-1/2 + delta), uniformly over rows"),
        Item("Proposition 4.2", "of the section with the proof", not_done=UNKNOWN),
        Item(
            "Lemma 4.4",
            "the exponential may be replaced by its centred Taylor polynomial of degree ceil(c log d/log log d), with "
            "an error of order d^(-1/2)",
        ),
        Item("Lemma 4.5", "that polynomial of the scores has the limit law of its own linear model"),
        Item(
            "Lemma B.11",
            "the tail of a Poisson variable of mean K from n on, the remainder of the exponential's Taylor polynomial, "
            "is at most (e K/n)^n",
            tested=f"{EQUIVALENCE}::test_remainders_of_the_taylor_polynomial_are_poisson_tails",
        ),
        Item(
            "Other statements",
            "the 42 theorems, lemmas, definitions, remarks and proofs after Proposition 4.2 that are not listed here",
            not_done="the text that we have carries their number, 55 in all, and nothing else of them",
        ),
        Item(
            "Table 1", "the only table of the paper", not_done="the text that we have says that it exists, and no more"
        ),
        Item(
            "Figure 1",
            "the bulk spectra of sqrt(d) A and of the six matrices of the proof are nearly indistinguishable",
        ),
        Item("Figure 2", "the three largest squared singular values"),
        Item("Figure 3", "growth of the coefficients around beta = 1, and of s_1(A)^2 and s_2(A)^2 up to beta >> 1"),
        Item("Threshold", "linearisation is valid for beta up to the order of sqrt(log d)"),
        Item("Figure 4", "at beta = 50 the squared singular values of A are close to Poisson(1)"),
        Item("Open question 1", "is Poisson(1) the limit law for beta beyond the order of sqrt(log d)?", asks=True),
        Item(
            "Open question 2",
            "does Gaussian equivalence extend to inputs that are not orthonormal?",
            asks=True,
            coarse="no theory here gives the distance that is left to the law of the inputs",
        ),
        Item(
            "Open question 3",
            "what makes the outliers of attention, and does a term of rank one describe them?",
            asks=True,
        ),
    ),
    # the text that we have has lost its formulas and numbers: sizes of figures are ours
    "recovery": (
        Item("Remark 1", "Bulk and outlier do not depend on the law of the noise's entries."),
        Item("Figure 1", "A drawing of the model.", not_done="it shows no result"),
        Item("Equation 3", "Given the table, pooled rows have covariance kappa S + alpha mu mu'."),
        Item("Equation 4", "alpha = w'Rw is what is kept of the signal, kappa = |w|^2 of the noise."),
        Item("Theorem 1", "The bulk is kappa MP(delta) * MP(gamma), a free product, and not Marchenko-Pastur."),
        Item("Equation 5", "Its Stieltjes transform solves a cubic.", tested=f"{RECOVERY}::test_cubic_of_the_bulk"),
        Item("Proposition 1", "The right edge of the bulk, by the trigonometric formula for a cubic."),
        Item("Theorem 2", "The population has an outlier once omega exceeds delta + sqrt(delta), with an overlap."),
        Item("Equation 6", "Where that outlier is."),
        Item(
            "Theorem 3",
            "The sample has an outlier once the population's exceeds a second threshold.",
            corrected=f"{SMALLER_ROOT}; {CLASS_MEANS}",
        ),
        Item("Equation 7", "It is the largest root of a quadratic.", corrected=SMALLER_ROOT),
        Item("Theorem 4", "The squared overlap of the eigenvectors of sample and population.", corrected=CLASS_MEANS),
        Item("Equation 8", "The alignment with the signal is the product of the two overlaps.", corrected=CLASS_MEANS),
        Item("Section 3.5", "Thresholds of the signal, equations 34 to 36, which fall as alpha/kappa grows."),
        Item("Theorem 5", "The best weights are the top eigenvector of R, and reach its largest eigenvalue."),
        Item(
            "Theorem 5(b)",
            "There is no best weighting where the top eigenvectors sum to zero.",
            tested=f"{POOLED}::test_a_supremum_without_a_maximiser_is_refused",
        ),
        Item(
            "Figure 2",
            "Alignment over signal and vocabulary ratio, for mean and for optimal weights.",
            corrected=CLASS_MEANS,
        ),
        Item(
            "Lemma 1", "Weights of causal self-attention with scores over d tend to fixed ones, at distance d^(-1/2)."
        ),
        Item("Proposition 2", "These are harmonic, with a logarithmic gain for a short prefix."),
        Item("Figure 3", "The bulk and the outlier, for mean and for causal weights.", corrected=CLASS_MEANS),
        Item("Figure 4(a)", "Alignment over the signal for three poolings, prefix correlation.", corrected=CLASS_MEANS),
        Item("Figure 4(b)", "The same for a spiked correlation.", corrected=CLASS_MEANS),
        Item("Figure 5(a)", "Critical signal over the length of the prefix."),
        Item("Figure 5(b)", "alpha/kappa over the length of the sequence: the lead of causal weights grows with it."),
        Item(
            "Figure 6", "Test accuracy of a ridge classifier: optimal over causal over mean pooling, at every signal."
        ),
        Item("Open problem (i)", "More than two classes.", asks=True),
        Item("Open problem (ii)", "Correlations that depend on the sample.", asks=True),
        Item("Open problem (iii)", "Attention that depends on the data.", asks=True),
        Item("Open problem (iv)", "Several heads and layers.", asks=True),
        Item("Open problem (v)", "Noise that is not isotropic.", asks=True),
        Item("Open problem (vi)", "Theory of the test accuracy.", asks=True),
        Item("Lemma 2", "The overlap is a logarithmic derivative of the outlier."),
        Item(
            "Appendix D.4",
            "With unlimited vocabulary the overlap is Paul's.",
            tested=f"{RECOVERY}::test_unlimited_vocabulary_gives_the_formula_of_paul",
        ),
        Item(
            "Equation 36",
            "Both thresholds fall as alpha/kappa grows.",
            tested=f"{RECOVERY}::test_thresholds_fall_as_more_signal_is_kept",
        ),
        Item("Equation 43", "alpha of the causal weights in harmonic numbers."),
        Item("Appendix I", "Embedding tables are a few directions and noise of a covariance profile."),
        Item("Figure 7(a)", "The spectrum of a trained embedding table: a bulk and outliers."),
        Item("Figure 7(b)", "The bulk compared with Silverstein's law."),
        Item(
            "Appendix J",
            "Learned weights: softmax of logits, ridge in closed form, gradient by the envelope theorem.",
            tested="tests/recovery/test_learned.py::test_gradient_against_finite_differences",
        ),
    ),
    "width": (
        Item("Theorem 3.1", "attention at infinite width is Gaussian given its scores, which are Gaussian themselves"),
        Item(
            "Netsor with dot products",
            "dot products over the root of n are Gaussian scalars, independent of all vectors",
            tested=f"{LIMITS}::test_covariance_given_the_scores",
        ),
        Item(
            "Master theorem",
            "moments of any program of the extended Netsor converge to those of its limit",
            tested=f"{LIMITS}::test_moments_of_a_program_with_everything",
        ),
        Item("Mechanism 3", "the limit describes layers of practical width: the divergence falls as the width grows"),
        Item("Figure 1(a)", "density of a coordinate at finite width over that of the limit"),
        Item("Figure 1(b)", "Kullback-Leibler divergence between the two, over the width"),
        Item("Scaling 1/n", "with scores over n instead of its root attention is uniform and the output Gaussian"),
        Item("Infinitely many heads", "as heads are added the output approaches a Gaussian"),
        Item("Tail risk", "who assumes a Gaussian misjudges the probability of extreme activations"),
        Item("Appendix B.2", "heads that are narrow compared with the width: what their dimension changes"),
        Item(
            "Other activations",
            "whether the limit needs the clip that the paper's experiments use",
            tested="tests/studies/test_width.py::test_every_activation_keeps_the_rate_of_the_divergence",
            asks=True,
            coarse="what a random kernel adds is a small part of the moment; 9.3 % at the paper's size",
        ),
        Item("Open question 1", "whether the non-Gaussian law persists as layers are stacked", asks=True),
        Item("Open question 2", "sequences that grow with the width", asks=True),
        Item("Open question 3", "what the non-Gaussian law does to training", asks=True),
        Item("Relative positions", "attention with relative position encodings", asks=True),
    ),
    "propagation": (
        Item(
            "Definition 1.1",
            "A random Markov matrix: i.i.d. non-negative entries of mean one, rows normalised.",
            tested=f"{PROPAGATION}::test_definition_1_1_random_markov_matrices",
        ),
        Item(
            "Proposition 1",
            "Key-query attention of orthonormal tokens is a random Markov matrix when the dimension of queries and "
            "keys is large, and uniform attention under Xavier's scaling. (The proof takes the scores as independent; "
            "they are so only if that is far above T.)",
        ),
        Item("Theorem 2", "The largest singular value tends to one, the second to 2 sigma/sqrt(T): the spectral gap."),
        Item("Figure 1", "Eigenvalues of attention: one at one, the others in a disc that shrinks."),
        Item(
            "Remark",
            "Values of variance one, not 1/d: attention has singular values of order 1/sqrt(T).",
            coarse="at quick sizes the mean of six layers scatters by so much",
        ),
        Item("Proposition 3", "Rank collapse in width: the stable rank tends to one as T^(1 - 2 l)."),
        Item("Proposition 4", "Exploding gradients: with the gap they grow like T^L at least."),
        Item(
            "Proposition 5",
            "Without the gap the stable rank does not collapse in width.",
            coarse="the largest value scatters by so much, at the paper's size too",
        ),
        Item("Proposition 6", "Without the gap expected squared gradients grow linearly in T."),
        Item("Proposition 7", "Mean and variance of the kernel's spectrum without the gap; for T > d an atom at zero."),
        Item(
            "Section 2.3",
            "Is dynamical isometry reachable? No choice of the scales of this model holds mean and variance.",
            asks=True,
        ),
        Item("Proposition 8", "Mean and variance of the Jacobian's squared singular values without the gap."),
        Item("Figure 2", "Stable rank over depth, with the gap and without, for several architectures."),
        Item(
            "Figure 3",
            "Not mentioned in the text that we have, of which only the end of its caption is left.",
            not_done="neither the figure nor what it shows is in the text that we have",
        ),
        Item("Figure 4", "Rank and gradient of the first layer across architectures; the gradient is linear in T."),
        Item(
            "Figure 5", "Gradients over depth: LayerNorm or removing the gap controls Markov attention, not key-query."
        ),
        Item(
            "Figure 6",
            "Training curves of several architectures, with the gap and without.",
            coarse="no theory here gives the loss of a trained network",
        ),
        Item("Figure 7", "The spectrum of key-query attention in deeper layers has further outliers."),
        Item(
            "Multiple outliers",
            "Open: where bulk and outliers of deeper layers lie, and whether to remove them all.",
            asks=True,
            coarse="no theory here gives the rank that is left",
        ),
        Item("Scaling discussion", "Beside a skip connection attention weighs 1/sqrt(T) unless values are rescaled."),
        Item(
            "Figure 8(a)",
            "Training under Xavier's scaling, where removing the gap leaves nothing of attention.",
            coarse="theory gives the first output, whose draws are few (22 % at the paper's size), "
            "and not the loss of a trained network",
        ),
        Item(
            "Figure 8(b)",
            "Training with the skip connection upscaled, which does worse, or with values rescaled.",
            coarse="no theory here gives the loss of a trained network",
        ),
        Item("Theorem 7", "The kernel's spectrum without the gap is a free product of Marchenko-Pastur laws."),
        Item("Theorem 8", "Moments of the Jacobian are products of two Fuss-Catalan numbers."),
        Item(
            "Lemma 1",
            "The squared length of a vector behind l Gaussian matrices has mean d^l and concentrates.",
            tested=f"{PROPAGATION}::test_lemma_1_length_behind_gaussian_matrices",
        ),
        Item(
            "Lemma 2",
            "A product of l Markov matrices has largest singular value one and second T^(-l/2), that without the gap.",
            tested=f"{PROPAGATION}::test_lemma_2_products_of_markov_matrices",
        ),
        Item(
            "Theorem 9",
            "The largest singular value of the network concentrates around d^(l/2).",
            tested=f"{PROPAGATION}::test_theorems_9_and_10_singular_values_of_the_network",
        ),
        Item(
            "Theorem 10",
            "Its second one is smaller by T^(-l/2) up to a constant.",
            tested=f"{PROPAGATION}::test_theorems_9_and_10_singular_values_of_the_network",
        ),
        Item("Lemma 3", "The bulk of sqrt(T) A without the gap is a quarter circle."),
        Item(
            "Lemma 4",
            "Mean and variance of a free product of Marchenko-Pastur laws.",
            tested=f"{PROPAGATION}::test_lemma_4_moments_of_free_products",
        ),
        Item(
            "Figure 9",
            "Gradients of key-query attention over depth: faster than the bound, without the gap too.",
            coarse="theory gives the gradient of Markov attention, and of key-query attention that it is larger",
        ),
    ),
}
"""Theorems, propositions, lemmas, figures, tables, experiments and open questions of each paper, in its order."""


def places(place: str) -> list[tuple[str, str]]:
    """The papers and items that a claim's ``place`` names.

    >>> places("ours"), places("laws: Tracy-Widom; ours")
    ([], [])
    """
    found = []
    for part in place.split(";"):
        paper, _, names = part.strip().partition(":")
        if paper in PAPERS:
            known = {item.name for item in ITEMS[paper]}
            for name in (each.strip().removeprefix(DENIES) for each in names.split(",")):
                if name not in known:
                    raise DomainError(f"place = {place!r}: {paper} has no item {name!r}; see studies/items.py")
                found.append((paper, name))
        elif paper not in (OURS, "laws"):
            raise DomainError(f"place = {place!r}: {paper!r} is none of {', '.join((*PAPERS, 'laws', OURS))}")
    return found


def contradicts(place: str, paper: str, name: str) -> bool:
    """Whether a claim of this ``place`` says that what the paper writes in the item is wrong.

    >>> contradicts("recovery: Equation 4, not Figure 5(b)", "recovery", "Figure 5(b)")
    True
    """
    parts = (part.strip().partition(":") for part in place.split(";"))
    return any(DENIES + name in map(str.strip, names.split(",")) for where, _, names in parts if where == paper)


def claims_of(paper: str, claims: Iterable[tuple[T, Claim]]) -> dict[str, list[tuple[T, Claim]]]:
    """The claims of each item of a paper."""
    found: dict[str, list[tuple[T, Claim]]] = {item.name: [] for item in ITEMS[paper]}
    for study, claim in claims:
        for where, name in dict.fromkeys(places(claim.place)):
            if where == paper:
                found[name].append((study, claim))
    return found


class Power(NamedTuple):
    """Which wrong predictions the claims of an item would notice.

    >>> Power(2, 1, 0, 0.09, 1, 2).cells
    ('2', '1', '0', '9.0 %', '1 of 2', '2 of 2')
    """

    numbers: int
    bounds: int
    signs: int
    detects: float
    """The smallest relative error of a number that one of them detects; nan if they claim no number."""
    low: int
    """How many of the numbers fail on their measurements if they are multiplied by 0.9."""
    high: int
    """The same for 1.1."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The same as cells of a table."""
        least = f"{self.detects:.1%}".replace("%", " %") if isfinite(self.detects) else "no number"
        noticed = (f"{count} of {self.numbers}" for count in (self.low, self.high))
        return (*map(str, (self.numbers, self.bounds, self.signs)), least, *noticed)


def power_of(paper: str, claims: Iterable[Claim]) -> dict[str, Power]:
    """What the claims of each claimed item would notice."""
    rows = {}
    for name, found in claims_of(paper, (("", claim) for claim in claims)).items():
        own = [claim for _, claim in found]
        kinds = [claim.kind for claim in own]
        numbers = [claim for claim in own if claim.kind == "number" and isfinite(claim.detectable)]
        least = min((claim.detectable for claim in numbers), default=nan)
        noticed = (sum(claim.detects(factor) for claim in numbers) for factor in (0.9, 1.1))
        if own:
            rows[name] = Power(len(numbers), kinds.count("bound"), kinds.count("sign"), least, *noticed)
    return rows
