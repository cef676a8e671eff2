"""What `claims` measures, worked out by hand; and the experiment, end to end at a tiny scale."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.config import load_preset
from lwm.errors import BadInput, RunFailed
from lwm.experiments import campaign, claims, claims_numbers, rows, runner, walks
from lwm.experiments.options import Options
from lwm.experiments.walks import Walks
from lwm.training import Trainer
from lwm.types import Step


def step(obs: Any, first: Any, action: Any = None, length: Any = None) -> Step:
    seen, is_first = np.array(obs), np.array(first, np.bool_)
    none, zero = np.zeros_like(is_first), np.zeros(len(is_first), np.float32)
    whole = np.zeros(len(is_first), np.int64)
    a_tm1 = whole if action is None else np.array(action)
    lasted = whole if length is None else np.array(length)
    return Step(seen, a_tm1, zero, is_first, none, zero + 1, zero, lasted, none)


def two_by_two() -> Walks:
    """One walk of five rows through rooms 0, 1, 1 (a wall), 0, and a new episode in room 3.

    Rooms 0 and 1 are joined, and 0 and 2, and 2 and 3.
    """
    up_down_left_right = {0: [0, 1, 0, 1], 1: [0, 0, 1, 0], 3: [0, 0, 1, 0]}
    rooms = [0, 1, 1, 0, 3]
    seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]
    first = [True, False, False, False, True]
    steps = [step([up_down_left_right[r]], [f]) for r, f in zip(rooms, first, strict=True)]
    return Walks(steps, np.array(rooms)[:, None], np.array(seen, np.bool_)[:, None])


def test_first_visits_by_hand() -> None:
    inside, new, moved = walks.first_visits(two_by_two())
    assert inside[:, 0].tolist() == [False, True, True, True, False]
    assert new[:, 0].tolist() == [False, True, False, False, False]
    assert moved[:, 0].tolist() == [False, True, False, True, False]


def test_rooms_behind_doors_by_hand() -> None:
    doors, known = walks.open_neighbours(two_by_two())
    # In room 0 the doors are down (room 2) and right (room 1).
    assert doors[0, 0].tolist() == [False, True, False, True]
    assert known[0, 0].tolist() == [False, False, False, False]
    assert known[1, 0].tolist() == [False, False, True, False]
    assert known[3, 0].tolist() == [False, False, False, True]
    assert known[4, 0].tolist() == [False, False, False, False]


@pytest.fixture(scope="module")
def trained() -> dict[str, Trainer]:
    small = {"env.size": 3, "loop.total_frames": 1200}
    found = {a: Trainer(load_preset("debug", {**small, "agent": a})) for a in ("lwm", "lwm-ff")}
    for trainer in found.values():
        for _ in trainer.run():
            pass
    return found


def played(trainer: Trainer, envs: int = 6, count: int = 120) -> Walks:
    return walks.play(trainer, envs, count, np.full(envs, 0.5))


def test_walks_are_of_the_labyrinth_that_is_played(trained: dict[str, Trainer]) -> None:
    found = played(trained["lwm"])
    T, N = 120, 6
    assert found.place.shape == (T, N) and found.visited.shape == (T, N, 9)
    here = np.take_along_axis(found.visited, found.place[..., None], -1)
    assert here.all()
    count = found.visited.sum(-1)
    assert (count[found.is_first] == 1).all() and found.is_first.sum() > N
    inside, new, moved = walks.first_visits(found)
    grown = np.diff(count, axis=0)[inside[1:]]
    assert set(grown) == {0, 1} and (new & ~moved).sum() == 0
    assert grown.sum() == new.sum()
    # A wall keeps the agent where it is: a move goes through a door of the row before.
    doors = np.stack([s.obs for s in found.steps])
    action = np.stack([s.a_tm1 for s in found.steps])
    opened = np.take_along_axis(doors[:-1], action[1:, :, None], -1)[..., 0] > 0
    assert np.array_equal(opened[inside[1:]], moved[1:][inside[1:]])


def test_the_trace_is_what_the_player_computed(
    trained: dict[str, Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    bonus: list[NDArray[np.float32]] = []
    original = walks.act

    def spy(*args: Any) -> Any:
        result = original(*args)
        bonus.append(result[0].r_in)
        return result

    monkeypatch.setattr(walks, "act", spy)
    found = played(trained["lwm"])
    monkeypatch.undo()
    seen = walks.trace(trained["lwm"].learner, found)
    assert np.array_equal(seen.r_in[:-1], np.stack(bonus))
    assert seen.h.shape == (120, 6, 16) and seen.belief.shape == (120, 6, 16)
    assert (seen.belief[found.is_first] == 0).all()


def test_only_a_memory_can_be_forgotten(trained: dict[str, Trainer]) -> None:
    found = played(trained["lwm"])
    for agent, recurrent in (("lwm", True), ("lwm-ff", False)):
        learner = trained[agent].learner
        kept, zeroed = (walks.trace(learner, found, forget).r_in for forget in (False, True))
        assert np.array_equal(kept, zeroed) != recurrent
    # The second row of an episode is predicted from a zero belief either way.
    after = np.zeros_like(found.is_first)
    after[1:] = found.is_first[:-1] & ~found.is_first[1:]
    learner = trained["lwm"].learner
    kept, zeroed = (walks.trace(learner, found, forget).r_in for forget in (False, True))
    np.testing.assert_allclose(kept[after], zeroed[after], atol=1e-5)


def test_numbers_of_a_labyrinth_agent(
    trained: dict[str, Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_numbers, "ENVS", 8)
    monkeypatch.setattr(claims_numbers, "ROWS", 150)
    told = claims_numbers.of_memory(trained["lwm"])
    told += claims_numbers.of_feed_forward(trained["lwm-ff"], trained["lwm"])
    by_claim: dict[str, set[str]] = {}
    for claim, variant, value in told:
        by_claim.setdefault(claim, set()).add(variant)
        assert value is None or 0 <= value <= 1
    both = {"recurrent", "belief zeroed", "feed-forward", "feed-forward, walks of recurrent"}
    memory = {"h", "belief", "h untrained", "belief untrained", "observation and time"}
    expected = {"b-auc": both, "b-auc_moves": both, "c-rooms": memory, "c-doors": memory}
    assert by_claim == expected


def test_what_knows_the_answer_is_read_off_and_noise_is_not(trained: dict[str, Trainer]) -> None:
    found = walks.play(trained["lwm"], 40, 200, np.full(40, 0.5))
    answer = found.visited.astype(np.float32)
    noise = np.random.default_rng(0).normal(size=answer.shape).astype(np.float32)
    for probe, source in (
        (claims_numbers.rooms_probe, answer),
        (claims_numbers.doors_probe, walks.open_neighbours(found)[1].astype(np.float32)),
    ):
        assert probe(source, found) == 1
        assert probe(noise, found) == pytest.approx(0.5, abs=0.06)


def test_numbers_of_an_encoder_by_hand() -> None:
    # Two lives of 100 rows in each of four games; x grows with time, y is noise of its own.
    rng = np.random.default_rng(0)
    T, N = 200, 4
    first = np.arange(T) % 100 == 0
    place = np.zeros((T, N, 3), np.int64)
    place[..., 1] = (np.arange(T) % 100)[:, None]
    place[..., 2] = rng.integers(100, size=(T, N))
    found = Walks(
        [step(np.zeros((N, 1)), np.full(N, f)) for f in first], place, np.zeros((T, N, 0))
    )
    z = np.stack([place[..., 1], -2 * place[..., 1]], -1).astype(np.float32)
    numbers = claims_numbers.encoder_numbers(z, found)
    assert numbers["rank_correlation"] == pytest.approx(1)
    assert numbers["probe_x"] == pytest.approx(1)
    assert numbers["probe_y"] == pytest.approx(0, abs=0.05)
    assert numbers["effective_rank"] == pytest.approx(1)


# The experiment.


def test_every_claim_has_its_runs() -> None:
    found = claims.plan()
    jobs = [setting.job(seed) for setting, seed in found]
    assert len({job.id for job in jobs}) == len(jobs) == 5 * 3 + 3
    told = {claim for setting, _ in found for claim, _ in setting.variants}
    assert told | {"b", "c"} == set(claims.SENTENCES) == set(claims.FIRST)
    for (setting, _), job in zip(found, jobs, strict=True):
        if setting.env == claims.LABYRINTH:
            assert job.config.loop.total_frames == 300_000 and job.config.env.size == 4
            assert job.config.evaluation.episodes == 4096 and job.config.preset == "paper"
            assert job.config.loop.warmup_frames == 10_000
        else:
            assert (job.config.preset, job.config.loop.total_frames) == ("laptop", 250_000)
    # What the others are compared with is lwm as it is; a game's may be there already.
    assert jobs[0].config == load_preset(
        "paper", {"env.size": 4, "loop.total_frames": 300_000, "agent": "lwm"}
    )
    assert jobs[15].id == "atari/montezuma_revenge-lwm-laptop/seed0"


def test_each_run_differs_by_its_switch_alone() -> None:
    from lwm.config import difference

    jobs = [setting.job(0) for setting, seed in claims.plan() if seed == 0]
    labyrinth, games = jobs[:5], jobs[5:]
    changed = [set(difference(job.config, labyrinth[0].config)) for job in labyrinth[1:]]
    assert changed == [
        {"agent"}, {"intrinsic.stored_bonus"}, {"dqn.error_input"}, {"intrinsic.beta"},
    ]  # fmt: skip
    changed = [set(difference(job.config, games[0].config)) for job in games[1:]]
    assert changed == [{"encoder.freeze_after_pretraining"}, {"encoder.spatial_shift"}]


def test_shorter_runs_by_hand() -> None:
    paper = load_preset("paper")
    assert campaign.shortened(paper, 1_000_000) == ""
    assert campaign.shortened(paper, 300_000) == "loop.total_frames=300000"
    # A twentieth of four warm-ups: 500 frames of warm-up, but windows of 100 rows need 8 * 101.
    assert campaign.shortened(paper, 2_000) == (
        "loop.total_frames=2000 loop.warmup_frames=808 evaluation.episodes=205 "
        "world_model.pretrain_iterations=50"
    )
    with pytest.raises(BadInput, match="--scale is too small: 800 steps"):
        campaign.shortened(paper, 800)


def test_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The feed-forward run ends before the one it is compared with, and gets its rows all the
    same; what is there is not run again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims_numbers, "ENVS", 8)
    plan = claims.plan

    def two(scale: float | None = None) -> Any:
        base, feed_forward = plan(scale)[:2]
        return [feed_forward, base]

    monkeypatch.setattr(claims, "plan", two)
    with pytest.raises(RunFailed, match="no rows in"):
        claims.main(Options(show=True))
    options = Options(scale=0.001, jobs=1)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "claims.md"
    page.write_text("a\n<!-- claims: written by `lwm reproduce claims` -->\n<!-- /claims -->\nz\n")
    assert claims.main(options) == 0
    out = capsys.readouterr().out
    assert out.index("waits for claims/4x4-lwm-paper") < out.index("finished claims/4x4-lwm-paper")
    found = rows.read(claims.PATH, claims.COLUMNS)
    named = {(row["claim"], row["variant"]) for row in found}
    assert {("a-score", "recomputed"), ("d-score", "error as input"), ("g-score", "beta 1")} < named
    assert {("b-auc", "feed-forward"), ("c-rooms", "belief"), ("c-doors", "h")} < named
    assert len(named) == len(found) == 3 + 4 + 10 + 4
    assert all(1000 <= int(row["frames"]) < 1010 for row in found)
    scores = {row["value"] for row in found if row["claim"].endswith("score")}
    assert len(scores) == 1  # one run stands for what three claims are compared with
    cut = "evaluation.episodes=102, loop.warmup_frames=808, world_model.pretrain_iterations=25"
    assert f"| b | auc | labyrinth-4x4, {cut} | 0.001 | recurrent |" in page.read_text()
    before = claims.PATH.read_bytes()
    assert claims.main(options) == 0
    assert claims.PATH.read_bytes() == before
    assert "started" not in capsys.readouterr().out
    # The run that it is compared with has its rows but is gone: it is made again, without new ones.
    (base,) = two(0.001)[0][0].beside(0)
    shutil.rmtree(base.directory)
    kept = [row for row in found if "--agent lwm-ff" not in row["command"]]
    claims.PATH.unlink()
    rows.append_all(claims.PATH, claims.COLUMNS, kept)
    assert claims.main(options) == 0
    assert f"started  {base.id}" in capsys.readouterr().out
    again = rows.read(claims.PATH, claims.COLUMNS)
    assert again[: len(kept)] == kept and len(again) == len(found)
    assert {str(row) for row in again} == {str(row) for row in found}  # the same bits


def add(variant: str, seed: int, value: float, settings: str) -> None:
    command = f"lwm train labyrinth --size 4 --agent lwm --preset paper --seed {seed} {settings}"
    row = {"claim": "a-score", "variant": variant, "seed": seed, "value": value}
    row |= {"env": claims.LABYRINTH, "frames": 300_404, "commit": "c", "machine": "m"}
    rows.append(claims.PATH, claims.COLUMNS, {**row, "command": command})


def test_the_table_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PATH", tmp_path / "claims.csv")
    plain, stored = "loop.total_frames=300000", "intrinsic.stored_bonus=true"
    for seed, (one, two) in enumerate([(-20.0, -30.0), (-22.0, -34.0)]):
        add("stored", seed, two, f"{plain} {stored}")
        add("recomputed", seed, one, plain)
    first, second = claims.markdown().splitlines()[2:]
    assert first.startswith("| a | score | labyrinth-4x4 | 0.3 | recomputed | -21.000 |")
    assert first.endswith("| 2 | – | – |")
    # Differences of -10 and -12: mean -11, half width 12.706 * sqrt(2) / sqrt(2).
    assert second.endswith("| 2 | -11.000 | [-23.706, 1.706] |")
    # Another budget and another setting are other rows, each with its own to compare with.
    add("recomputed", 0, -1.0, "loop.total_frames=300400")
    add("stored", 0, -5.0, f"{plain} {stored} dqn.gamma=0.5")
    found = claims.markdown().splitlines()[2:]
    assert len(found) == 4 and found[0] == first and found[1] == second
    assert found[2].startswith("| a | score | labyrinth-4x4 | 0.3004 | recomputed | -1.000 |")
    assert found[3].startswith("| a | score | labyrinth-4x4, dqn.gamma=0.5 | 0.3 | stored |")
    assert found[3].endswith("| – | 1 | – | – |")
    add("recomputed", 1, -9.0, plain)
    with pytest.raises(BadInput, match="two rows of one run and seed: lwm train labyrinth"):
        claims.markdown()


@pytest.mark.parametrize("agent", ["lwm", "lwm-rf"])
def test_a_run_of_a_game_speaks_for_its_claims(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lwm import session

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims_numbers, "GAMES", 4)
    monkeypatch.setattr(claims_numbers, "GAME_ROWS", 70)
    config = load_preset("debug", {"atari.game": claims.GAME, "agent": agent}, "atari")
    job = runner.Job("claims/game/seed0", ("train", "atari"), config)
    session.run(*session.start(config, job.directory))
    monkeypatch.setattr(claims.Setting, "job", lambda self, seed: job)
    told = claims.Setting(claims.GAME, variants=(("e", "updated"), ("f", "shift 4"))).rows(0)
    names = ("score", "positions", "rank_correlation", "probe_x", "probe_y", "effective_rank")
    assert [row["claim"] for row in told] == [f"{c}-{n}" for c in "ef" for n in names]
    assert {(row["claim"][0], row["variant"]) for row in told} == {
        ("e", "updated"),
        ("f", "shift 4"),
    }
    values = {row["claim"]: row["value"] for row in told}
    assert values["e-positions"] >= 1 and 1 <= values["e-effective_rank"] <= 8
    assert all(values[f"e-{n}"] == values[f"f-{n}"] for n in names)
    (frames,) = {row["frames"] for row in told}
    assert frames in (4 * 260, 4 * 261)  # emulator frames; two actors step at once
    rows.append_all(claims.PATH, claims.COLUMNS, told)
    assert "| e | effective_rank | montezuma_revenge |" in claims.markdown()
