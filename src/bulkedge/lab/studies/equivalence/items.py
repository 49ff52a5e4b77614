"""What the paper *equivalence* contains, in its order, as far as the text that this project has carries it.

That text has the abstract, the figures' captions, a summary, and the first ten of 55 numbered statements by name; of
most statements it has the number alone.
"""

from bulkedge.lab.studies.items import Item

UNKNOWN = "the text that we have carries its number and not its statement"

ITEMS: tuple[Item, ...] = (
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
        tested="tests/studies/test_equivalence.py::test_the_edge_is_beyond_that_of_marchenko_pastur",
    ),
    Item("Lemma 4.1", "the row normalisers concentrate at the scale d^(-1/2 + delta), uniformly over rows"),
    Item("Proposition 4.2", "of the section with the proof", not_done=UNKNOWN),
    Item(
        "Lemma 4.4",
        "the exponential may be replaced by its centred Taylor polynomial of degree ceil(c log d/log log d), with an "
        "error of order d^(-1/2)",
    ),
    Item("Lemma 4.5", "that polynomial of the scores has the limit law of its own linear model"),
    Item(
        "Lemma B.11",
        "the tail of a Poisson variable of mean K from n on, the remainder of the exponential's Taylor polynomial, is "
        "at most (e K/n)^n",
        tested="tests/studies/test_equivalence.py::test_remainders_of_the_taylor_polynomial_are_poisson_tails",
    ),
    Item(
        "Other statements",
        "the 42 theorems, lemmas, definitions, remarks and proofs after Proposition 4.2 that are not listed here",
        not_done="the text that we have carries their number, 55 in all, and nothing else of them",
    ),
    Item("Table 1", "the only table of the paper", not_done="the text that we have says that it exists, and no more"),
    Item("Figure 1", "the bulk spectra of sqrt(d) A and of the six matrices of the proof are nearly indistinguishable"),
    Item("Figure 2", "the three largest squared singular values"),
    Item("Figure 3", "growth of the coefficients around beta = 1, and of s_1(A)^2 and s_2(A)^2 up to beta >> 1"),
    Item("Threshold", "linearisation is valid for beta up to the order of sqrt(log d)"),
    Item("Figure 4", "at beta = 50 the squared singular values of A are close to Poisson(1)"),
    Item("Open question 1", "is Poisson(1) the limit law for beta beyond the order of sqrt(log d)?"),
    Item("Open question 2", "does Gaussian equivalence extend to inputs that are not orthonormal?"),
    Item("Open question 3", "what makes the outliers of attention, and does a term of rank one describe them?"),
)
