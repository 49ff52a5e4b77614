"""The explorer in a browser: every room opens, sliders move curves to what Python says, files are taken or refused."""

import io
import threading
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

import bulkedge as be

pytest.importorskip("dash")

from bulkedge.lab.explore.app import make_server
from bulkedge.lab.explore.rooms import ROOMS, HeadsRoom, RecoveryRoom

DRAWN = "document.querySelector('#figure .js-plotly-plot')?.layout?.meta"


@pytest.fixture
def visit(browser, server):
    """Opens an address, and checks in the end that nothing was complained of, and nothing asked for elsewhere."""
    problems, requests, contexts = [], [], []

    def opened(path, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{server}/{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith((server, "data:", "blob:"))] == []


def query_of(page):
    return dict(parse_qsl(urlsplit(page.url).query))


def curve(page, start):
    """The curve whose label begins so, when it is drawn."""
    found = page.wait_for_function(
        """start => document.querySelector('#figure .js-plotly-plot')?.data
          ?.find(each => each.name.startsWith(start))""",
        arg=start,
    )
    return found.json_value()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), pytest.param(1280, "light", marks=pytest.mark.slow)])
def test_every_room_opens_and_fits_its_page(visit, width, scheme):
    page = visit("", width, scheme)
    for room in ROOMS.values():
        page.locator(f"nav a[href='/{room.name}']").click()
        page.wait_for_function(f"({DRAWN})?.includes('{room.declared()[1].name}=')")
        assert page.inner_text("h1") == room.title
        assert room.not_claimed in page.inner_text(".shows")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # a slider and the figure are in sight together
        assert page.locator("#controls").bounding_box()["y"] < 900
        assert page.locator("#figure").bounding_box()["y"] < 500
        assert page.get_attribute("nav a[aria-current=page]", "href") == f"/{room.name}"
        colour = page.evaluate("document.querySelector('#figure .js-plotly-plot').layout.font.color")
        assert colour == ("#e6e8eb" if scheme == "dark" else "#1c1e21")
        assert page.locator("input[type=range]").evaluate_all("all => all.every(each => each.labels.length === 1)")


@pytest.mark.always
def test_a_slider_moves_the_curve_to_what_python_says_and_the_address_keeps_it(visit):
    page = visit("heads?qk_norm=True&tokens=256&axes=quantiles")
    page.wait_for_function(DRAWN)
    slider = page.get_by_label("β", exact=False).first
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    page.wait_for_function("document.querySelector('#figure .js-plotly-plot').layout.meta.includes('beta=0.86')")
    assert page.inner_text("#value-beta") == slider.get_attribute("aria-valuetext") == "0.86"
    # first from the table, then the law itself
    page.wait_for_function(
        "document.querySelector('#figure .js-plotly-plot').data.some(each => each.name === 'finite-head law')"
    )
    found, law = curve(page, "finite-head law"), be.FiniteHeadLaw(0.86, 64, 256, qk_norm=True)
    assert np.allclose(found["y"], law.ppf(1 - np.array(found["x"])), rtol=1e-8)  # x has twelve digits
    page.wait_for_function("location.search.includes('beta=0.86')")
    expected = HeadsRoom(beta=0.86, qk_norm=True, tokens=256, axes="quantiles")
    assert HeadsRoom.read(urlsplit(page.url).query) == (expected, [])
    page.reload()
    page.wait_for_function(DRAWN)
    assert page.inner_text("#value-beta") == "0.86"
    assert page.evaluate(DRAWN) == expected.query()


def test_simulation_follows_and_stops(visit):
    page = visit("channel?tokens=64")
    page.wait_for_function("document.querySelector('#status')?.textContent.includes('8 simulations.')")
    assert curve(page, "simulation, 8")
    assert "entropy, simulated" in page.inner_text("#facts")
    before = curve(page, "simulation, 8")["y"]
    page.get_by_role("button", name="Simulate again").click()
    page.wait_for_function("location.search.includes('seed=8')")
    page.wait_for_function("document.querySelector('#status')?.textContent.includes('8 simulations.')")
    # other draws, not the same ones once more
    page.wait_for_function(
        """before => JSON.stringify(document.querySelector('#figure .js-plotly-plot').data
          .find(each => each.name.startsWith('simulation, 8'))?.y ?? before) !== JSON.stringify(before)""",
        arg=before,
    )


def test_a_bad_address_gets_a_message_and_the_defaults(visit):
    page = visit("width?heads=3&nothing=<b>1</b>")
    page.wait_for_function(DRAWN)
    said = page.inner_text("[role=alert]")
    assert "heads = '3' is outside its domain" in said
    assert "'nothing' is no parameter of this room" in said
    page.wait_for_function("location.search.includes('heads=1')")
    page.goto(page.url.split("/width")[0] + "/nowhere<script>")
    page.wait_for_function(DRAWN)
    assert "there is no room" in page.inner_text("[role=alert]")
    page.wait_for_function("location.pathname === '/heads'")


def test_a_click_on_the_phase_diagram_sets_its_parameters(visit):
    page = visit("recovery")
    page.wait_for_function(DRAWN)
    place = page.evaluate(
        """() => {
          const drawn = document.querySelector("#figure .js-plotly-plot"), full = drawn._fullLayout;
          drawn.scrollIntoView();
          const box = drawn.getBoundingClientRect(), x = full.xaxis3, y = full.yaxis3;
          return [box.left + x._offset + x.d2p(1.0), box.top + y._offset + y.d2p(2.5)];
        }"""
    )
    page.mouse.click(*place)
    page.wait_for_function("!location.search.includes('signal=1.2')")
    found = query_of(page)
    assert float(found["signal"]) == pytest.approx(2.5, abs=0.08)
    assert float(found["vocab_ratio"]) == pytest.approx(1.0, abs=0.06)
    alignment = curve(page, "these parameters")["y"][0]
    room, _ = RecoveryRoom.read(urlsplit(page.url).query)
    assert alignment == pytest.approx(room.theory()[4].y[0], rel=1e-10)
    signal = page.locator("input[type=range]").first
    signal.press("Home")
    page.wait_for_function("location.search.includes('signal=0.0')")
    page.mouse.click(*place)  # the same place once more
    page.wait_for_function("location.search.includes('signal=2.5')")


@pytest.mark.slow
def test_dark_and_light_by_a_button(visit):
    page = visit("collapse?tokens=32&depth=2&variance=0.2")
    page.wait_for_function(DRAWN)
    page.get_by_role("button", name="Dark or light").click()
    page.wait_for_function("document.querySelector('#figure .js-plotly-plot').layout.font.color === '#e6e8eb'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"


@pytest.mark.slow
def test_downloads(visit):
    page = visit("channel?tokens=64&directions=2")
    page.wait_for_function(DRAWN)
    files = {}
    for name in ("Data", "Python", "Figure"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name, exact=True).click()
        files[waiting.value.suggested_filename] = waiting.value.path().read_text()
    assert files["bulkedge_channel.csv"].startswith('curve,panel,x,y,z\n"theory, many tokens",0,')
    assert files["bulkedge_channel.py"] == ROOMS["channel"](tokens=64, directions=2).script()
    assert files["bulkedge-channel.svg"].startswith("<svg")


def upload(page, name, data):
    page.set_input_files(
        "#upload input[type=file]", {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )


def test_a_matrix_is_fitted_and_a_hostile_file_refused(visit):
    page = visit("matrix", 390)
    stream = io.BytesIO()
    np.save(stream, np.array([[print]], dtype=object), allow_pickle=True)
    upload(page, "evil.npy", stream.getvalue())
    page.wait_for_function("document.querySelector('#matrix-status')?.textContent.includes('Refused')")
    assert "objects are not read, as that runs code" in page.inner_text("#matrix-status")
    upload(page, "model.pt", b"PK")  # of a kind that browsers would leave out without a word
    page.wait_for_function("document.querySelector('#matrix-status')?.textContent.includes('model.pt')")
    assert "neither .npy nor .safetensors" in page.inner_text("#matrix-status")
    assert page.locator("#matrix-downloads").is_hidden()
    rng = np.random.default_rng(0)
    spiked = rng.standard_normal((60, 80)) + np.outer(np.ones(60), rng.standard_normal(80))
    stream = io.BytesIO()
    np.save(stream, spiked)
    upload(page, "<i>mine</i>.npy", stream.getvalue())
    page.wait_for_function(DRAWN)
    said = page.inner_text("#matrix-result")
    assert "MarchenkoPastur: independent entries" in said
    assert "below 1e-15" in said
    assert "<i>mine</i>.npy" in page.inner_text("#matrix-status")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#matrix-downloads").is_visible()


DRAG = """
async (name) => {
  const slider = document.getElementById(JSON.stringify({ parameter: name }));
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  for (let k = 1; k <= 20; k++) {
    set.call(slider, String(3 * k));
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => setTimeout(done, 50));
  }
  return document.getElementById("value-" + name).textContent;
}
"""


def test_the_last_of_many_moves_wins(visit):
    page = visit("recovery?length=10")
    page.wait_for_function(DRAWN)
    last = page.evaluate(DRAG, "signal")
    page.wait_for_function(f"({DRAWN}).includes('signal={last}&')")
    page.wait_for_timeout(1000)  # nothing older comes afterwards
    room, problems = RecoveryRoom.read(page.evaluate(DRAWN))
    assert (str(room.signal), problems) == (last, [])
    assert query_of(page)["signal"] == last
    assert np.allclose(curve(page, "these parameters")["y"], room.theory()[4].y, rtol=1e-10)
    assert "stale" not in (page.get_attribute("#frame", "class") or "")


def test_the_page_says_that_its_server_has_stopped_and_goes_on_when_it_is_back(browser):
    made = make_server(0, apart=False)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{made.port}/width?inputs=2")
    page.wait_for_function(DRAWN)
    port = made.port
    made.shutdown()
    thread.join()
    made.server_close()
    made.app.config["JOBS"].stop()
    page.locator("input[type=range]").first.press("ArrowRight")
    page.wait_for_selector("#gone")
    assert "The server has stopped" in page.inner_text("#gone")
    page.wait_for_selector("#frame.stale")  # the old curve is not taken for the new one
    again = make_server(port, apart=False)
    assert again.port == port
    threading.Thread(target=again.serve_forever, daemon=True).start()
    page.wait_for_function(f"({DRAWN}).includes('heads=2&')")
    assert page.locator("#gone").count() == 0
    page.close()
    again.shutdown()
    again.server_close()
    again.app.config["JOBS"].stop()
