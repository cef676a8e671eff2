"""Tables 2 and 3: what is planned, what it costs, what is printed; and a run, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lwm.cli import main
from lwm.config import load_preset
from lwm.errors import BadInput
from lwm.experiments import atari, campaign, curves, rows, table2, table3
from lwm.experiments.options import Options
from lwm.plots import dynamics


def test_the_whole_plan() -> None:
    two, three = table2.plan(), table3.plan()
    assert len(two) == 6 * 2 * 5 and len(three) == 6 * 2
    job = two[0][0].job(0)
    assert job.command == "lwm train atari --game freeway --agent lwm --preset paper --seed 0"
    assert job.config.loop.total_frames * job.config.atari.action_repeat == 50_000_000
    assert table2.plan(Options(scale=1.0)) == two
    assert {s.agent for s, _ in three} == {"lwm-ff", "lwm-rf"}
    assert [seed for _, seed in two[:12]] == [0] * 12  # all games once before any twice
    assert len(table3.plan(Options(seeds=3))) == 3 * len(three)
    ids = [s.job(seed).id for s, seed in [*two, *three]]
    assert len(set(ids)) == len(ids)


def test_smaller_scales() -> None:
    (setting, _), *_ = table2.plan(Options(scale=0.5))
    assert setting.preset == "paper" and setting.variant == "loop.total_frames=6250000"
    # A fiftieth is preset laptop as it is: its runs are those of `lwm reproduce atari`.
    (setting, seed), *_ = table2.plan(Options(scale=0.02))
    assert setting.job(seed) == atari.plan()[0][0].job(0)
    (setting, seed), *_ = table3.plan(Options(scale=0.001))
    config = setting.job(seed).config
    assert (config.loop.total_frames, config.loop.warmup_frames) == (12_500, 32 * 101)
    assert (config.encoder.pretrain_iterations, config.evaluation.episodes) == (125, 16)
    with pytest.raises(BadInput, match="--scale is too small"):
        table3.plan(Options(scale=0.0001))
    (setting, _), *_ = table3.plan(Options(preset="debug", game=["pong"]))
    assert (setting.game, setting.preset, setting.variant) == ("pong", "debug", "")


def test_a_rows_command_gives_its_config() -> None:
    for setting, seed in table3.plan(Options(scale=0.001, game=["venture"])):
        job = setting.job(seed)
        row = {"game": "venture", "agent": setting.agent, "preset": "laptop", "seed": "0"}
        assert atari.config_of({**row, "command": job.command}) == job.config


def test_the_cost_is_that_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    assert table2.hours_per_million() is None
    assert "lwm plan atari --game freeway" in table2.cost(table2.plan())
    # 128 actors and 4 frames a step: 1953.125 cycles a million frames, 1.8432 s each: one hour.
    bench = [{"workload": "atari", "stage": "cycle", "cores": c, "ms": 1843.2 / c} for c in (1, 2)]
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    assert table2.hours_per_million() == pytest.approx(1)
    told = table2.cost(table2.plan())
    assert "60 runs" in told and "about 50 hours a run (1.00 per million frames" in told


def row(
    game: str, agent: str, seed: int, score: float, frames: int, preset: str, further: str = ""
) -> dict[str, str]:
    cells = {"game": game, "agent": agent, "preset": preset, "seed": seed, "frames": frames}
    told = {"score": score, "median": score, "rooms": "", "positions": "", "eval_positions": ""}
    command = f"lwm train atari --game {game} --agent {agent} --preset {preset} --seed {seed}"
    source = {"command": f"{command} {further}".strip(), "commit": "c", "machine": "m"}
    return {k: str(v) for k, v in {**cells, **told, **source}.items()}


def test_the_tables_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table2, table3):
        monkeypatch.setattr(module, "PATH", tmp_path / "atari.csv")
    empty = table2.markdown()
    assert "| freeway | 1 | paper | – | – | 0 | – | – | 0 | 33.8 | 27.1 |" in empty
    assert "| DreamerV3 | 33.5 | 10746 | 0 | 4382 | 3918 | 1817 |" in empty
    found = [
        row("venture", "lwm", 0, 900, 50_000_128, "paper"),
        row("venture", "lwm", 1, 1100, 50_000_000, "paper"),
        row("venture", "dqn", 0, 10, 50_000_000, "paper"),
        row("venture", "lwm", 0, 7, 1_000_064, "laptop"),
        row("venture", "lwm-rf", 0, 3, 1_000_064, "laptop"),
    ]
    rows.append_all(tmp_path / "atari.csv", atari.COLUMNS, found)
    lines = table2.markdown().splitlines()
    # Two seeds, 100 from their mean: 12.706 * 141.42 / sqrt(2) = 1270.6.
    ours = "| venture | 1 | paper | 1000.0 | [-270.60, 2270.60] | 2 | 10.0 | – | 1 |"
    assert f"{ours} 646 | 589 | 418 | 707 | 445 | 998 |" in lines
    assert any(line.startswith("| venture | 0.02 | laptop | 7.0 | – | 1 | – |") for line in lines)
    assert lines.index("") == 2 + 6 + 1  # the paper's games, our smaller scale
    lines = table3.markdown().splitlines()
    small = "| venture | 0.02 | laptop | – | – | 0 | 3.0 | – | 1 | 7.0 | – | 1 |"
    assert f"{small} 1206 | 810 | 998 |" in lines
    assert len(lines) == 2 + 6 + 1


def test_curves_are_kept_as_rows_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = [
        {"frames": 10, "coverage/positions": 3},
        {"frames": 20, "world_model/error_mean": 1.0},
        {"frames": 30, "coverage/positions": 5, "episode/return": 100.0},
        {"frames": 40, "coverage/positions": 9, "episode/return": 50.0},
    ]
    monkeypatch.setattr(curves, "POINTS", 2)
    monkeypatch.setattr(curves.runs, "read_metrics", lambda _: iter(log))
    for game in ("montezuma_revenge", "freeway"):
        for seed in (0, 1):
            job = atari.Setting(game, "lwm").job(seed)
            origin = {"command": job.command, "commit": "c", "machine": "m"}
            monkeypatch.setattr(campaign, "outcome", lambda _, o=origin: ({}, o))
            atari.keep_curve(job)
            atari.keep_curve(job)  # of one that is there, nothing more
        log = [{k: v for k, v in row.items() if "coverage" not in k} for row in log]
    found = rows.read(atari.CURVES, atari.CURVE_COLUMNS, atari.fault)
    told = [(r["game"], r["seed"], r["frames"], r["return"], r["positions"]) for r in found]
    assert told == [
        ("montezuma_revenge", "0", "120", "100", "4"),
        ("montezuma_revenge", "0", "160", "50", "9"),
        ("montezuma_revenge", "1", "120", "100", "4"),
        ("montezuma_revenge", "1", "160", "50", "9"),
        ("freeway", "0", "120", "100", ""),
        ("freeway", "0", "160", "50", ""),
        ("freeway", "1", "120", "100", ""),
        ("freeway", "1", "160", "50", ""),
    ]
    drawn = {}
    monkeypatch.setattr(dynamics, "bands", lambda groups, *_: drawn.update(groups))
    atari._draw()
    assert {key: (band.mean[-1], n) for key, (band, n) in drawn.items()} == {
        ("montezuma_revenge: positions", "lwm, laptop", "positions"): (9, 2),
        ("freeway: return", "lwm, laptop", "return"): (50, 2),
    }
    assert atari.campaign_of(Options()).keep is atari.keep_curve


def test_the_same_run_has_one_command() -> None:
    # A fiftieth of the paper's budget is that of preset laptop; other scales are those of table2.
    assert atari.plan(0.02) == atari.plan()
    for scale in (0.01, 0.001):
        ours = {s.job(seed).command for s, seed in atari.plan(scale)}
        games = Options(scale=scale, game=["freeway", "montezuma_revenge"])
        theirs = {s.job(seed).command for s, seed in table2.plan(games) if seed < 3}
        assert ours == theirs


def test_rows_of_other_settings_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "atari.csv"
    for module in (atari, table2):
        monkeypatch.setattr(module, "PATH", path)
    found = [
        row("venture", "lwm", 0, 900, 50_000_128, "paper"),
        row("venture", "lwm", 1, 10, 50_000_128, "paper", "intrinsic.beta=0.5"),
        row("venture", "lwm", 2, 20, 49_800_064, "paper", "--frames 12450000"),
        row("venture", "lwm", 3, 30, 50_000_128, "paper", "--frames 12500000"),
    ]
    rows.append_all(path, atari.COLUMNS, found)
    # Seeds 0 and 3 are of one setting: whoever gives the preset's own number changes nothing.
    lines = [line for line in table2.markdown().splitlines() if line.startswith("| venture")]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["1", "paper", "465.0"],
        ["1", "paper, intrinsic.beta=0.5", "10.0"],
        ["0.996", "paper", "20.0"],
    ]
    lines = atari.markdown().splitlines()[2:]
    assert [line.split(" | ")[4:6] for line in lines] == [
        ["0.996", "20.00"],
        ["1", "465.00"],
        ["1", "10.00"],
    ]
    again = row("venture", "lwm", 0, 7, 50_000_128, "paper", "--frames 12500000")
    rows.append(path, atari.COLUMNS, again)
    for table in (atari.markdown, table2.markdown):
        with pytest.raises(BadInput, match=r"atari\.csv: two rows of one run and seed: lwm train"):
            table()


def test_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table3", "--preset", "debug", "--game", "freeway", "--jobs", "1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "started  atari/freeway-lwm-rf-debug/seed0" in out and "scale 1 is" in out
    found = rows.read(atari.PATH, atari.COLUMNS)
    assert [r["agent"] for r in found] == ["lwm-ff", "lwm-rf"]
    assert all(int(r["frames"]) >= 4 * 260 for r in found)
    base = load_preset("debug", {"agent": "lwm-rf", "atari.game": "freeway"}, "atari")
    assert atari.config_of(found[1]) == base
    before = atari.PATH.read_bytes()
    assert main(words) == 0
    assert atari.PATH.read_bytes() == before and "started" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table2", "--only", "pong"], "no run of table2 has pong in its id"),
        (["table3", "--scale", "0"], "not a fraction"),
        (["table3", "--scale", "0.00001"], "--scale is too small"),
        (["table3", "--preset", "lptop"], "did you mean 'laptop'"),
        (["table2", "--game", "sloaris"], "did you mean 'solaris'"),
        (["claims", "--game", "pong"], "claims does not take --game"),
        (["claims", "--only", "9x9"], "no run of claims has 9x9 in its id"),
        (["table4"], "unknown experiment 'table4'"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
