"""The data behind pictures: areas are masses, marks are where the numbers say, axes are those that show something."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import bulkedge as be
from bulkedge.lab.studies.claims import Claim, Rival

mpl.use("Agg")
LAWS = {
    "linear": be.Semicircle(2.0),
    "sqrt": be.MarchenkoPastur(0.25, scale=3.0),
    "log": be.FiniteHeadLaw(1.0, 16, 512, qk_norm=True),
    "two intervals": be.free_mul(be.EmpiricalLaw([1.0, 8.0]), be.MarchenkoPastur(0.1)),
    "atom": be.MarchenkoPastur(2.0),
}


@pytest.fixture
def axes():
    return Figure().subplots()


def on_the_axis(axes, x):
    return axes.xaxis.get_transform().transform(np.asarray(x, dtype=float))


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("scale", ["auto", "linear", "sqrt", "log"])
def test_the_area_under_a_density_is_its_mass(axes, law, scale):
    """By trapezia on 600 points, dense at the ends: one per cent; a logarithmic axis leaves out 0.2 per cent."""
    if law.lower_edge < 0 and scale in {"sqrt", "log"}:
        return
    assert law.plot(axes, scale=scale) is axes
    curves = [each for each in axes.lines if len(each.get_xdata()) > 10]
    assert len(curves) == len(law.support)
    area = sum(np.trapezoid(each.get_ydata(), on_the_axis(axes, each.get_xdata())) for each in curves)
    assert area == pytest.approx(1 - sum(mass for _, mass in law.atoms), abs=0.01)
    assert axes.get_xlabel() == law.unit


def test_atoms_are_stems(axes):
    be.MarchenkoPastur(2.0).plot(axes)
    (mark,) = [each for each in axes.lines if len(each.get_xdata()) == 1]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (0.0, 0.5)
    low, _ = axes.get_xlim()
    assert low < 0


@pytest.mark.parametrize("scale", ["linear", "sqrt", "log"])
def test_bars_hold_the_values(axes, scale):
    values = np.random.default_rng(0).gamma(2.0, size=300)
    be.plots.histogram(be.Spectrum.of(values, "squared singular values"), axes, scale=scale, bins=12)
    heights, edges, _ = axes.patches[0].get_data()
    assert len(heights) == 12
    assert np.sum(heights * np.diff(on_the_axis(axes, edges))) == pytest.approx(1.0, abs=0.003)
    assert edges[-1] == pytest.approx(values.max())


def test_a_comparison_shows_its_outliers(axes):
    z = np.random.default_rng(1).standard_normal((400, 200))
    z[:, 0] *= 3
    result = be.compare(be.spectrum(z / 20).squared(), be.MarchenkoPastur(0.5))
    assert result.plot(axes) is axes
    marks = [each for each in axes.lines if each.get_marker() == "v"]
    assert marks[0].get_xdata().tolist() == list(result.outliers)
    assert f"{result.ks:.3g}" in axes.get_title()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["spectrum", "law", "1 outlier"]
    assert axes.get_ylim()[1] > max(each.get_ydata().max() for each in axes.lines)


def test_quantiles_lie_on_the_diagonal(axes):
    law = be.MarchenkoPastur(0.5)
    values = law.ppf((np.arange(100) + 0.5) / 100)
    be.plots.quantiles(be.Spectrum.of(values, "eigenvalues"), law, axes)
    points = axes.lines[0]
    assert points.get_xdata() == pytest.approx(points.get_ydata())
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    with pytest.raises(be.DomainError, match="convert one of them"):
        be.plots.quantiles(be.Spectrum.of(values, "singular values"), law, axes)


def test_quantiles_over_decades_have_logarithmic_axes(axes):
    law = be.CausalLaw(1.0)
    values = law.ppf((np.arange(100) + 0.5) / 100)
    be.plots.quantiles(be.Spectrum.of(values, law.unit), law, axes)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_what_has_no_density_shows_its_distribution_function(axes):
    first, second = (be.Wishart(30, 60).spectrum(np.random.default_rng(seed)) for seed in (0, 1))
    first.plot(second, axes)
    assert all(np.all(np.diff(each.get_ydata()) >= 0) for each in axes.lines)
    assert axes.get_ylim() == (0, 1)


def test_without_axes_it_is_the_current_figure():
    import matplotlib.pyplot as plt

    figure, current = plt.subplots()
    assert be.Semicircle().plot() is current
    assert be.spectrum(np.eye(5)).plot() is current
    plt.close(figure)


def test_scales_are_checked(axes):
    with pytest.raises(be.DomainError, match="scale = 'cubic' is outside its domain"):
        be.Semicircle().plot(axes, scale="cubic")


def test_notebooks_show_tables_and_escape():
    law = be.MarchenkoPastur(2.0)
    assert "0.5 at 0" in law._repr_html_()
    spectrum = be.spectrum(np.diag([1.0, 2.0, 4.0]))
    assert "<td>2</td>" in spectrum._repr_html_()
    assert "&lt;" not in spectrum._repr_html_()
    result = be.compare(spectrum, spectrum)
    assert "<th>Wasserstein distance</th><td>0</td>" in result._repr_html_()
    claim = Claim("a < b", "ours", be.Estimate(1.1, 0.1), 1.0, Rival("nothing", 0.0))
    assert "a &lt; b" in claim._repr_html_()
    assert "holds" in claim._repr_html_()
