"""What the paper *recovery* contains, in its order.

The text that these were read from has lost its formulas and numbers: sizes of its figures are not known, and ours are
marked so in the studies.
"""

from bulkedge.lab.studies.items import Item

POOLED = "tests/ensembles/test_pooled.py"
STUDIES = "tests/studies/test_recovery.py"

ITEMS: tuple[Item, ...] = (
    Item("Remark 1", "Bulk and outlier do not depend on the law of the noise's entries."),
    Item("Figure 1", "A drawing of the model.", not_done="it shows no result"),
    Item("Equation 3", "Given the table, pooled rows have covariance kappa S + alpha mu mu'."),
    Item("Equation 4", "alpha = w'Rw is what is kept of the signal, kappa = |w|^2 of the noise."),
    Item("Theorem 1", "The bulk is kappa MP(delta) * MP(gamma), a free product, and not Marchenko-Pastur."),
    Item("Equation 5", "Its Stieltjes transform solves a cubic.", tested=f"{STUDIES}::test_cubic_of_the_bulk"),
    Item("Proposition 1", "The right edge of the bulk, by the trigonometric formula for a cubic."),
    Item("Theorem 2", "The population has an outlier once omega exceeds delta + sqrt(delta), with an overlap."),
    Item("Equation 6", "Where that outlier is."),
    Item("Theorem 3", "The sample has an outlier once the population's exceeds a second threshold."),
    Item("Equation 7", "It is a root of a quadratic: the text says the largest, and it is the smaller."),
    Item("Theorem 4", "The squared overlap of the eigenvectors of sample and population."),
    Item("Equation 8", "The alignment with the signal is the product of the two overlaps."),
    Item("Section 3.5", "Thresholds of the signal, equations 34 to 36, which fall as alpha/kappa grows."),
    Item("Theorem 5", "The best weights are the top eigenvector of R, and reach its largest eigenvalue."),
    Item(
        "Theorem 5(b)",
        "There is no best weighting where the top eigenvectors sum to zero.",
        tested=f"{POOLED}::test_a_supremum_without_a_maximiser_is_refused",
    ),
    Item("Figure 2", "Alignment over signal and vocabulary ratio, for mean and for optimal weights."),
    Item("Lemma 1", "Weights of causal self-attention with scores over d tend to fixed ones, at distance d^(-1/2)."),
    Item("Proposition 2", "These are harmonic, with a logarithmic gain for a short prefix."),
    Item("Figure 3", "The bulk and the outlier, for mean and for causal weights."),
    Item("Figure 4(a)", "Alignment over the signal for three poolings, prefix correlation."),
    Item("Figure 4(b)", "The same for a spiked correlation."),
    Item("Figure 5(a)", "Critical signal over the length of the prefix."),
    Item("Figure 5(b)", "alpha/kappa over the length of the sequence."),
    Item("Figure 6", "Test accuracy of a ridge classifier: optimal over causal over mean pooling, at every signal."),
    Item("Open problem (i)", "More than two classes."),
    Item("Open problem (ii)", "Correlations that depend on the sample."),
    Item("Open problem (iii)", "Attention that depends on the data."),
    Item("Open problem (iv)", "Several heads and layers."),
    Item("Open problem (v)", "Noise that is not isotropic."),
    Item("Open problem (vi)", "Theory of the test accuracy."),
    Item("Lemma 2", "The overlap is a logarithmic derivative of the outlier."),
    Item(
        "Appendix D.4",
        "With unlimited vocabulary the overlap is Paul's.",
        tested=f"{STUDIES}::test_unlimited_vocabulary_gives_the_formula_of_paul",
    ),
    Item(
        "Equation 36",
        "Both thresholds fall as alpha/kappa grows.",
        tested=f"{STUDIES}::test_thresholds_fall_as_more_signal_is_kept",
    ),
    Item("Equation 43", "alpha of the causal weights in harmonic numbers."),
    Item("Appendix I", "Embedding tables are a few directions and noise of a covariance profile."),
    Item("Figure 7(a)", "The spectrum of a trained embedding table: a bulk and outliers."),
    Item("Figure 7(b)", "The bulk beside Silverstein's law."),
    Item(
        "Appendix J",
        "Learned weights: softmax of logits, ridge in closed form, gradient by the envelope theorem.",
        tested="tests/recovery/test_learned.py::test_gradient_against_finite_differences",
    ),
)
