"""What the paper *propagation* contains, in its order."""

from bulkedge.lab.studies.items import Item

TESTS = "tests/studies/test_propagation.py"

ITEMS: tuple[Item, ...] = (
    Item(
        "Definition 1.1",
        "A random Markov matrix: i.i.d. non-negative entries of mean one, rows normalised.",
        tested=f"{TESTS}::test_definition_1_1_random_markov_matrices",
    ),
    Item(
        "Proposition 1",
        "Key-query attention of orthonormal tokens is a random Markov matrix when the dimension of queries and keys is "
        "large, and uniform attention under Xavier's scaling. (The proof takes the scores as independent; they are "
        "so only if that is far above T.)",
    ),
    Item("Theorem 2", "The largest singular value tends to one, the second to 2 sigma/sqrt(T): the spectral gap."),
    Item("Figure 1", "Eigenvalues of attention: one at one, the others in a disc that shrinks."),
    Item("Remark", "Values of variance one, not 1/d: attention has singular values of order 1/sqrt(T)."),
    Item("Proposition 3", "Rank collapse in width: the stable rank tends to one as T^(1 - 2 l)."),
    Item("Proposition 4", "Exploding gradients: with the gap they grow like T^L at least."),
    Item("Proposition 5", "Without the gap the stable rank does not collapse in width."),
    Item("Proposition 6", "Without the gap expected squared gradients grow linearly in T."),
    Item("Proposition 7", "Mean and variance of the kernel's spectrum without the gap; for T > d an atom at zero."),
    Item("Proposition 8", "Mean and variance of the Jacobian's squared singular values without the gap."),
    Item("Figure 2", "Stable rank over depth, with the gap and without, for several architectures."),
    Item(
        "Figure 3",
        "Not mentioned in the text that we have, of which only the end of its caption is left.",
        not_done="neither the figure nor what it shows is in the text that we have",
    ),
    Item("Figure 4", "Rank and gradient of the first layer across architectures; the gradient is linear in T."),
    Item("Figure 5", "Gradients over depth: LayerNorm or removing the gap controls Markov attention, not key-query."),
    Item("Figure 6", "Training curves of several architectures, with the gap and without."),
    Item("Figure 7", "The spectrum of key-query attention in deeper layers has further outliers."),
    Item("Multiple outliers", "Open: where bulk and outliers of deeper layers lie, and whether to remove them all."),
    Item(
        "Scaling discussion",
        "Beside a skip connection attention weighs 1/sqrt(T) unless values are rescaled.",
    ),
    Item("Figure 8(a)", "Training under Xavier's scaling, where removing the gap leaves nothing of attention."),
    Item("Figure 8(b)", "Training with the skip connection upscaled or values rescaled."),
    Item("Theorem 7", "The kernel's spectrum without the gap is a free product of Marchenko-Pastur laws."),
    Item("Theorem 8", "Moments of the Jacobian are products of two Fuss-Catalan numbers."),
    Item(
        "Lemma 1",
        "The squared length of a vector behind l Gaussian matrices has mean d^l and concentrates.",
        tested=f"{TESTS}::test_lemma_1_length_behind_gaussian_matrices",
    ),
    Item(
        "Lemma 2",
        "A product of l Markov matrices has largest singular value one and second T^(-l/2), that without the gap.",
        tested=f"{TESTS}::test_lemma_2_products_of_markov_matrices",
    ),
    Item(
        "Theorem 9",
        "The largest singular value of the network concentrates around d^(l/2).",
        tested=f"{TESTS}::test_theorems_9_and_10_singular_values_of_the_network",
    ),
    Item(
        "Theorem 10",
        "Its second one is smaller by T^(-l/2) up to a constant.",
        tested=f"{TESTS}::test_theorems_9_and_10_singular_values_of_the_network",
    ),
    Item("Lemma 3", "The bulk of sqrt(T) A without the gap is a quarter circle."),
    Item(
        "Lemma 4",
        "Mean and variance of a free product of Marchenko-Pastur laws.",
        tested=f"{TESTS}::test_lemma_4_moments_of_free_products",
    ),
    Item("Figure 9", "Gradients of key-query attention over depth: faster than the bound, without the gap too."),
)
