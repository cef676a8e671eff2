"""What the docs show runs: the plug-in guide's code, the examples; the reference is up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lwm import experiments
from lwm.experiments import table1

TOP = Path(__file__).resolve().parents[1]
GUIDE = TOP / "docs" / "plugin.md"
EXAMPLES = sorted(p for p in (TOP / "examples").glob("*.py") if p.name != "corridor.py")

needs_sb3 = pytest.mark.skipif(
    find_spec("stable_baselines3") is None, reason="needs the extra lwm[sb3]"
)


def run(*command: str, folder: Path) -> str:
    """What a Python process prints."""
    environment = {
        **os.environ,
        "MPLBACKEND": "Agg",
        "PYTHONPATH": os.pathsep.join([str(TOP / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_sb3
def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 8
    (tmp_path / "guide.py").write_text("\n".join(blocks), encoding="utf-8")
    told = run("-W", "error", "guide.py", folder=tmp_path)
    assert told.startswith("Bonus(lwm: 64 bits -> ")
    made = {p.name for p in tmp_path.iterdir()}
    assert {"bonus.png", "lake.zip", "lake-bonus", "bonus-of-frozen-lake"} <= made


@pytest.mark.parametrize(
    ("env", "space", "clipped"), [(None, "64 bits", 0.0), ("CartPole-v1", "4 numbers", 0.05)]
)
def test_what_the_guides_loop_pays(
    env: str | None, space: str, clipped: float, tmp_path: Path
) -> None:
    """Sections 1 and 2, as they stand and on an environment that has a vector form of its own:
    about mean 0, and not at the bound, where CartPole's balancing for long is rightly new."""
    sections = re.split(r"^## ", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:3]
    blocks = re.findall(r"```python\n(.*?)```", "".join(sections), re.DOTALL)
    code = "\n".join(blocks)
    if env is not None:
        chosen = f'ENV, SETTINGS = "{env}", {{}}'
        code, count = re.subn(r"ENV, SETTINGS = .*", chosen, code, count=1)
        assert count == 1
    code += "\nr = np.array(paid)[np.any(paid, 1).argmax():]\n"
    code += (
        "print(len(r), r.mean(), (np.abs(r) > 9.99).mean(), *map(np.mean, np.split(r[-400:], 8)))"
    )
    (tmp_path / "guide.py").write_text(code, encoding="utf-8")
    told = run("-W", "error", "guide.py", folder=tmp_path).splitlines()
    assert told[0].startswith(f"Bonus(lwm: {space} -> ")
    count, mean, bound, *parts = map(float, told[1].split())
    assert count > 400 and abs(mean) < 1 and bound <= clipped
    assert max(map(abs, parts)) < 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    if path.name.startswith("sb3"):
        pytest.importorskip("stable_baselines3", reason="needs the extra lwm[sb3]")
    told = run(str(path), "--quick", folder=tmp_path).splitlines()
    assert len(told) == 2 and "without the bonus: reached the goal in 0 of" in told[0]
    assert told[1].startswith("seed 0 with")


def test_the_corridor_trains_by_its_name(tmp_path: Path) -> None:
    """As docs/minigrid.md says of one's own environments."""
    code = f"import sys; sys.path.insert(0, {str(TOP / 'examples')!r}); from lwm.cli import main; "
    arguments = ["train", "gym", "--env", "corridor:Corridor-v0", "--preset", "debug", "--quiet"]
    told = run("-c", f"{code}sys.exit(main({arguments}))", folder=tmp_path)
    assert "of 4 episodes" in told and "corridor" in told


def test_how_rarely_chance_gets_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples' docstring says: in one of 400 million episodes."""
    monkeypatch.syspath_prepend(str(TOP / "examples"))
    import corridor

    env = corridor.Corridor()
    share, found = np.eye(env.length + 1)[0], 0.0
    for _ in range(3 * env.length):
        after = np.zeros_like(share)
        for place in range(env.length):
            for action in range(corridor.ACTIONS):
                env.place, env.steps = place, 0
                reached, *_ = env.step(action)
                after[reached] += share[place] / corridor.ACTIONS
        found += after[env.length]
        after[env.length] = 0
        share = after
    assert 1 / found == pytest.approx(4e8, rel=0.05)


@needs_sb3
@pytest.mark.long
def test_the_bonus_finds_what_ppo_alone_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds; the lines are printed for the log."""
    told = run(str(TOP / "examples" / "sb3_ppo.py"), folder=tmp_path)
    with capsys.disabled():
        print(f"\n{told}")
    lines = re.findall(r"seed \d (\w+) +the bonus: reached the goal in (\d+) of (\d+)", told)
    assert len(lines) == 6
    assert all(int(count) == 0 for which, count, _ in lines if which == "without")
    assert all(int(count) > int(of) / 10 for which, count, of in lines if which == "with")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("table1", "docs/table1.md"),
        ("claims", "docs/claims.md"),
        ("minigrid", "docs/minigrid.md"),
        ("noisy-tv", "docs/noisy-tv.md"),
        ("figure3", "docs/figure3.md"),
    ],
)
def test_the_tables_are_those_of_the_committed_rows(
    name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOP)
    page = Path(file).read_text(encoding="utf-8")
    assert experiments.find(name).markdown() in page, f"run: lwm reproduce {name} --show"


def test_the_table_of_the_front_page_is_that_of_the_committed_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(TOP)
    page = Path("README.md").read_text(encoding="utf-8")
    assert table1.summary() in page, "run: lwm reproduce table1 --show"


PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            place, _, anchor = link.partition("#")
            target = page.parent / place if place else page
            assert target.exists(), link
            if anchor and target.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                made = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
                assert anchor in made, link


def test_the_reference_is_up_to_date() -> None:
    told = run("-c", "import make_api, sys; sys.stdout.write(make_api.page())", folder=TOP / "docs")
    assert told == (TOP / "docs" / "api.md").read_text(encoding="utf-8"), "run: make api"
