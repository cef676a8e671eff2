"""The viewer's page in a real browser: every page clicked through, no error in its console."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lwm import session
from lwm.config import load_preset
from lwm.episodes import episode_path, write_episode
from lwm.experiments import trajectory

pytest.importorskip("starlette", reason="needs the extra lwm[viewer]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import sync_playwright

from test_viewer import maze, pictures, write_run

CHROMIUM = (
    os.environ.get("LWM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
)
PATIENCE = 120_000
GAMES = importlib.util.find_spec("ale_py") is not None

CONTRAST = """() => {
  const part = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (text) => {
    const c = text.match(/[\\d.]+/g).slice(0, 3).map((v) => part(v / 255));
    return .2126 * c[0] + .7152 * c[1] + .0722 * c[2];
  };
  const style = getComputedStyle(document.body), soft = document.querySelector(".soft");
  const ground = light(style.backgroundColor);
  return [style.color, soft ? getComputedStyle(soft).color : style.color].map((c) => {
    const [a, b] = [light(c), ground].sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  });
}"""
"""Contrast of plain and of soft text with the ground, as WCAG defines it; 4.5 is its AA."""

PIXEL = """() => {
  const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  copy.drawImage(document.querySelector("canvas.film"), 0, 0);
  return copy.getImageData(9, 9, 1, 1).data[0];
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two agents and three seeds, episodes of both kinds, and a run that can be played."""
    root = tmp_path_factory.mktemp("viewer") / "runs"
    for agent in ("lwm", "dqn"):
        for seed in range(3):
            write_run(root / f"t/{agent}/seed{seed}", 40, seed, agent=agent)
    run = root / "t/lwm/seed0"
    write_episode(episode_path(run / "episodes", 0), maze())
    write_episode(episode_path(run / "episodes", 1), pictures())
    config = load_preset("debug", {"env.size": 2, "loop.total_frames": 1500})
    session.run(*session.start(config, root / "trained"))
    if GAMES:
        settings = {"atari.game": "montezuma_revenge", "evaluation.episodes": 1,
                    "atari.time_limit": 40}  # fmt: skip
        session.run(*session.start(load_preset("debug", settings, "atari"), root / "games"))
    return root


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "lwm.cli", "view", str(place), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line
        yield line.rsplit(" ", 1)[1].strip()
        process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as api:
        made = api.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page at the table; whatever it writes to its console is a fault."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    made = context.new_page()
    made.set_default_timeout(PATIENCE)
    said: list[str] = []
    made.on("console", lambda message: said.append(message.text))
    made.on("pageerror", lambda error: said.append(str(error)))
    made.goto(address)
    made.wait_for_selector("#runs tbody tr")
    yield made
    context.close()
    assert said == []


def hidden_width(page: Any) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_the_table_sorts_filters_and_changes_by_itself(page: Any, place: Path) -> None:
    names = "[...document.querySelectorAll('#runs tbody a')].map(a => a.textContent)"
    assert len(page.evaluate(names)) == 7 + GAMES
    page.click("thead button:has-text('agent')")
    assert page.evaluate(names)[0] == "t/dqn/seed0"
    page.click("thead button:has-text('agent')")
    assert page.get_attribute("thead th[aria-sort=descending]", "aria-sort") == "descending"
    page.fill("input[type=search]", "dqn seed1")
    assert page.evaluate(names) == ["t/dqn/seed1"]
    page.fill("input[type=search]", "")
    new = write_run(place / "new", 2)
    page.wait_for_selector("a:text-is('new')")
    shutil.rmtree(new)
    page.wait_for_selector("a:text-is('new')", state="detached")


def test_runs_are_chosen_and_compared_with_the_keyboard(page: Any) -> None:
    for seed in range(3):
        page.focus(f"input[aria-label='choose t/lwm/seed{seed}']")
        page.keyboard.press("Space")
    page.focus("button:has-text('Compare 3')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".legend li:has-text('3 seeds')")
    page.focus(".chart svg")
    page.keyboard.press("ArrowLeft")
    assert "−61" in page.inner_text(".chart output") or "−62" in page.inner_text(".chart output")
    page.check("label:has-text('logarithmic') input")
    page.select_option("select[aria-label=metric]", "episode/length")
    page.wait_for_selector("h3:has-text('episode/length')")
    for kind, begin in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"name,frames")):
        with page.expect_download() as found:
            page.click(f".chart button:text-is('{kind}')")
        assert Path(found.value.path()).read_bytes().startswith(begin)


def test_one_run_and_its_export_without_a_server(page: Any, tmp_path: Path) -> None:
    page.click("a:text-is('t/lwm/seed0')")
    page.wait_for_selector(".chart h3:text-is('Return')")
    assert page.inner_text("td:text-is('paper') + td") == "−10.8"
    page.click("button:has-text('settings')")
    page.wait_for_selector("code:text-is('dqn.n_step')")
    with page.expect_download() as found:
        page.click("button:has-text('Export HTML')")
    file = tmp_path / "export.html"
    found.value.save_as(file)
    page.goto(file.as_uri())
    page.wait_for_selector(".chart h3:text-is('Return')")
    assert page.inner_text("td:text-is('paper') + td") == "−10.8"


def test_a_labyrinth_is_played_stepped_and_scrubbed(page: Any, address: str) -> None:
    page.goto(f"{address}#/episode?id=t%2Flwm%2Fseed0&n=0")
    page.wait_for_selector(".maze")
    page.click("#on")
    assert page.inner_text("#step") == "step 1 of 3"
    assert "went right, bonus 4, return −1, 2 of 4 rooms" in page.inner_text("main")
    page.keyboard.press("End")
    assert page.inner_text("#step") == "step 3 of 3"
    page.keyboard.press("Home")
    page.select_option("#speed", "60")
    page.click("#play")
    page.wait_for_selector("#step:text-is('step 3 of 3')")
    assert page.inner_text("#play") == "Play"


def test_pictures_timeline_and_latent_move_together(
    page: Any, address: str, tmp_path: Path
) -> None:
    page.goto(f"{address}#/episode?id=t%2Flwm%2Fseed0&n=1")
    page.wait_for_selector("canvas.film[data-step]")

    def shown(step: int) -> None:
        page.wait_for_selector(f"canvas.film[data-step='{step}']")
        assert page.evaluate(PIXEL) == step % 256
        assert page.inner_text("#step") == f"step {step} of 299"

    page.fill("#scrub", "280")
    shown(280)
    for kind, share, step in (("line", 0.5, 150), ("film", 0.25, 75), ("plane", 0.97, 299)):
        box = page.locator(f"canvas.{kind}").bounding_box()
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.5)
        page.wait_for_timeout(300)
        now = int(page.inner_text("#step").split()[1])
        assert abs(now - step) <= 2, kind
        shown(now)
    assert "1 lives lost" in page.inner_text("main")
    with page.expect_download() as found:
        page.click("button:has-text('Export HTML')")
    file = tmp_path / "export.html"
    found.value.save_as(file)
    page.goto(file.as_uri())
    page.fill("#scrub", "290")
    shown(290)


def test_a_person_plays_by_keyboard_and_saves(page: Any, address: str, place: Path) -> None:
    page.goto(f"{address}#/play?id=trained")
    page.wait_for_selector("#board")
    for number, key in enumerate(("ArrowUp", "ArrowDown", "a", "d"), 1):
        page.keyboard.press(key)
        page.wait_for_selector(f"#told:has-text('step {number},')")
        if "over" in page.inner_text("#told"):
            break
    page.click("#save")
    page.wait_for_selector("#saved:has-text('saved in trajectories/labyrinth-0000.json')")
    assert (place / "trajectories/labyrinth-0000.json").exists()


@pytest.mark.skipif(not GAMES, reason="needs the extra lwm[atari]")
def test_a_person_plays_a_game_that_figure3_takes(page: Any, address: str, place: Path) -> None:
    page.goto(f"{address}#/play?id=games")
    page.wait_for_selector("#board")
    page.keyboard.down("ArrowRight")
    page.click("#go")
    while int(re.search(r"step (\d+),", page.inner_text("#told"))[1]) < 10:
        page.wait_for_timeout(50)
    page.click("#go")
    page.keyboard.up("ArrowRight")
    page.click("#save")
    page.wait_for_selector("#saved:has-text('figure3 --trajectory')")
    (file,) = (place / "trajectories").glob("montezuma_revenge-*.json")
    played = trajectory.read(file)
    assert played.game == "montezuma_revenge" and len(played.actions) >= 5
    assert set(played.actions) <= {"RIGHT", "NOOP"} and "RIGHT" in played.actions
    assert len(trajectory.replay(played).obs) == len(played.actions) + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_can_be_read(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    for where, what in (("", "#runs tbody tr"), ("#/run?id=t%2Flwm%2Fseed0", ".chart"),
                        ("#/compare?id=trained&key=episode%2Freturn", ".chart"),
                        ("#/episode?id=t%2Flwm%2Fseed0&n=0", ".maze"),
                        ("#/episode?id=t%2Flwm%2Fseed0&n=1", "canvas.film")):  # fmt: skip
        page.goto(address + where)
        page.wait_for_selector(what)
        assert hidden_width(page) <= 0, where
        contrast = page.evaluate(CONTRAST)
        assert min(contrast) >= 4.5, where
    context.close()


def test_faults_are_told_in_words(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    for where, words in (("#/run?id=..%2F..%2Fetc", "no such run"), ("#/nothing", "no such page"),
                         ("#/episode?id=trained&n=7", "no such episode"),
                         ("#/compare", "choose runs")):  # fmt: skip
        page.goto(address + where)
        page.wait_for_selector(f"#problem:has-text('{words}')")
        assert "Traceback" not in page.content()
    page.close()


def test_a_page_survives_its_server(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_selector("#runs tbody tr")
    page.route("**/api/**", lambda route: route.abort())
    page.wait_for_selector("#problem:has-text('does not answer')")
    page.unroute("**/api/**")
    page.wait_for_selector("#problem", state="hidden")
    page.close()
