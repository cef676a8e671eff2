"""Result rows and the runner: nothing committed is lost, nothing stale becomes a row."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lwm import experiments, files, runs, session
from lwm.cli import main
from lwm.config import difference, get, load_preset
from lwm.errors import BadInput, RunFailed
from lwm.experiments import atari, campaign, limits, rows, runner, table1, table1_plan, table2
from lwm.experiments.options import Options
from lwm.statistics import interval

COLUMNS = ("a", "b")


def test_rows_come_back_as_text(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.csv"
    assert rows.read(path, COLUMNS) == []
    rows.append(path, COLUMNS, {"a": 1, "b": None})
    rows.append(path, COLUMNS, {"a": 0.123456789, "b": "x,y"})
    assert path.read_text() == 'a,b\n1,\n0.123457,"x,y"\n'
    assert rows.read(path, COLUMNS) == [{"a": "1", "b": ""}, {"a": "0.123457", "b": "x,y"}]
    rows.write(path, COLUMNS, [{"a": 2, "b": 3}])
    assert path.read_text() == "a,b\n2,3\n"


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2,3\n", "a,c\n1,2\n", "", "a,b\n\xff,1\n"])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput):
        rows.read(path, COLUMNS)


def test_cells_that_hold_numbers_are_checked_once(tmp_path: Path) -> None:
    path, columns = tmp_path / "x.csv", ("seed", "score", "value")
    for cells, wrong in (
        ("0,-1.5e3,", ""),
        ("0,1,2", ""),
        ("0,abc,", "score 'abc' is not a number"),
        ("0,nan,", "score 'nan' is not a number"),
        ("0,,1", "score '' is not a number"),
        ("0,1,x", "value 'x' is not a number"),
        ("1.5,1,", "seed '1.5' is not a whole number"),
        (",1,", "seed '' is not a whole number"),
    ):
        path.write_text(f"seed,score,value\n7,8,9\n{cells}\n")
        if wrong:
            with pytest.raises(BadInput, match=rf"x\.csv: line 3: {wrong}"):
                rows.read(path, columns)
        else:
            assert len(rows.read(path, columns)) == 2
    # A cell over two lines: the number is that of the file's line, not of the row.
    path.write_text('seed,score,value\n7,8,"9\n"\n8,1,2\n')
    with pytest.raises(BadInput, match=r"x\.csv: line 4: odd"):
        rows.read(path, columns, lambda row: "odd" if row["seed"] == "8" else "")


@pytest.mark.parametrize(
    ("name", "cells", "told"),
    [
        ("table1", {"score": "abc"}, "score 'abc' is not a number"),
        ("table1", {"agent": "lvm"}, "unknown agent 'lvm'"),
        ("table1", {"size": "3x3"}, "size '3x3' is not a whole number"),
        ("table1", {"solved": ""}, "no share of solved"),
        ("limits", {"score": ""}, "score '' is not a number"),
        ("atari", {"frames": "1e6"}, "frames '1e6' is not a whole number"),
        ("atari", {"agent": ""}, "unknown agent ''"),
        ("minigrid", {"success": "yes"}, "success 'yes' is not a number"),
        ("minigrid", {"agent": "nobody"}, "unknown agent 'nobody'"),
        ("claims", {"claim": "z-score"}, "unknown claim 'z-score'"),
        ("claims", {"value": "?"}, "value '?' is not a number"),
        ("noisy-tv", {"bonus": "wms"}, "unknown bonus 'wms'"),
        ("noisy-tv", {"command": "lwm train"}, "no --frames in the command 'lwm train'"),
        ("figure3", {"scale": "big"}, "scale 'big' is not a number"),
        ("figure3", {"scale": "7"}, "scale '7' is not a fraction in (0, 1]"),
    ],
)
def test_a_damaged_row_is_one_line_that_names_it(
    name: str,
    cells: dict[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = experiments.find(name)
    good = rows.read(Path(rows.__file__).parents[3] / module.PATH, module.COLUMNS)[:1]
    monkeypatch.chdir(tmp_path)
    rows.write(module.PATH, module.COLUMNS, [*good, {**good[0], "seed": 9, **cells}])
    for words in (["reproduce", name, "--show"], ["report"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error == f"lwm: results/{name}.csv: line 3: {told}\n"
    numbers = "is not a" in told and "fraction" not in told
    # What is there is counted by columns that name a run: words may be wrong, numbers may not.
    assert main(["reproduce", "--list"]) == (2 if numbers or name == "figure3" else 0)
    assert capsys.readouterr().err.count("\n") <= 1


def test_flags_and_settings_of_a_command() -> None:
    assert rows.told("lwm train atari --seed 3 --frames 90 a.b=c=d") == {
        "--seed": "3",
        "loop.total_frames": "90",
        "a.b": "c=d",
    }


def test_a_row_that_another_process_has_written_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for row in ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2.0, "b": 4}, {"a": 2.0, "b": 5}):
        rows.append_all(path, COLUMNS, [row], keys=("a",))
    assert [row["b"] for row in rows.read(path, COLUMNS)] == ["2", "4"]


def test_a_full_disk_leaves_the_rows_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    rows.append(path, COLUMNS, {"a": 1, "b": 2})
    before = path.read_bytes()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rows.os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        rows.append(path, COLUMNS, {"a": 3, "b": 4})
    assert path.read_bytes() == before
    monkeypatch.setattr(files, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        rows.write(path, COLUMNS, [{"a": 5, "b": 6}])
    assert path.read_bytes() == before


def debug_job(seed: int = 0, **changes: Any) -> runner.Job:
    flags = ("--preset", "debug", "--seed", str(seed))
    config = load_preset("debug", {"seed": seed, **changes})
    return runner.Job(f"t/seed{seed}", ("train", "labyrinth", *flags), config)


def test_jobs_run_once_and_stale_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done: list[str] = []
    jobs = [debug_job(0), debug_job(1)]
    assert runner.run_all(jobs, 2, lambda job: done.append(job.id)) == []
    assert sorted(done) == ["t/seed0", "t/seed1"]
    stamp = (tmp_path / "runs/t/seed0/metrics.jsonl").stat().st_mtime_ns
    assert runner.run_all(jobs[:1], 1, lambda job: done.append(job.id)) == []
    assert done[-1] == "t/seed0"
    assert (tmp_path / "runs/t/seed0/metrics.jsonl").stat().st_mtime_ns == stamp
    changed = debug_job(0, **{"dqn.gamma": 0.5})
    ((job, message),) = runner.run_all([changed], 1, lambda job: done.append("wrong"))
    assert job is changed and "other settings" in message and "wrong" not in done


def test_an_interrupted_job_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = debug_job(2)
    writer, trainer = session.start(job.config, job.directory)
    with writer:
        for event in trainer.run():
            if event.frames > 900:
                break
        writer.checkpoint(trainer.frames, trainer.get_state())
    done: list[str] = []
    assert runner.run_all([job], 1, lambda job: done.append(job.id)) == []
    assert done == ["t/seed2"]


def test_asked_to_end_it_stops_its_runs_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = debug_job(3, **{"loop.total_frames": 10**9})
    long = runner.Job(job.id, (*job.arguments, "loop.total_frames=1000000000"), job.config)
    asked = []

    def ask(_: float) -> None:
        time.sleep(0.05)
        here = runs.is_run(job.directory)
        if not asked and here and any(runs.read_metrics(job.directory)):
            asked.append(os.kill(os.getpid(), signal.SIGTERM))

    monkeypatch.setattr(runner, "time", SimpleNamespace(sleep=ask))
    with pytest.raises(SystemExit) as caught:
        runner.run_all([long], 1, lambda job: None)
    assert caught.value.code == 128 + signal.SIGTERM
    status = runs.read_status(job.directory)
    assert status is not None and status["state"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_failing_job_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bad = runner.Job("t/bad", ("train", "labyrinth", "dqn.gama=1"), load_preset("debug"))
    ((job, message),) = runner.run_all([bad], 1, lambda job: None)
    assert job is bad and "unknown setting 'dqn.gama'" in message
    (tmp_path / "runs/t").rename(tmp_path / "runs/u")
    (tmp_path / "runs/t").write_text("a file where a folder should be")
    with pytest.raises(RunFailed, match="cannot start"):
        runner.run_all([bad], 1, lambda job: None)


def test_every_planned_run_has_its_own_id_and_a_config_that_its_command_gives() -> None:
    jobs = [setting.job(seed) for setting, seed in table1.plan()]
    assert len({job.id for job in jobs}) == len(jobs)
    first = table1.plan()[0][0].job(0)
    assert first.command == "lwm train labyrinth --size 3 --agent lwm --preset paper --seed 0"
    assert first.config == load_preset("paper", {"env.size": 3, "agent": "lwm", "seed": 0})


def test_what_best_changes_is_taken_back_in_the_plan() -> None:
    paper, best = load_preset("paper"), load_preset("best", {"env.size": 5, "agent": "lwm"})
    planned = [s for s, _ in table1.plan() if s.size in (4, 5) and s.preset == "best"]
    planned.append(table1_plan.ablation(table1_plan.LAST))  # a row of the run beside it
    back: set[str] = set()
    for setting in planned:
        whole = load_preset("best", {"env.size": setting.size, "agent": "lwm"})
        changed = difference(setting.job(0).config, whole)
        back |= {key for key, (_, new) in changed.items() if new == get(paper, key)}
    # Left: what means nothing alone (shares of schedules, a window's length), and the number of
    # updates, which is halved by 32 actors instead.
    together = {"env.early_share", "replay.unroll", "replay.burn_in", "dqn.anneal_share",
                "intrinsic.fade_from", "loop.actors", "loop.cycles_per_update"}  # fmt: skip
    assert set(difference(best, paper)) - back == together | {"preset", "env.size"}


def test_a_run_that_averages_gives_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    last = {"episodes": 8, "score": -3.0, "score128": -3.0, "solved": 1.0, "median_solved": -3.0}
    result = {**last, "frames": 10, "score": -2.0, "last_weights": last}
    origin = {"command": "c", "commit": "d", "machine": "m"}
    monkeypatch.setattr(table1_plan.campaign, "outcome", lambda job: (result, origin))
    switch = "dqn.reset_state=false"
    for variant, rest in ((table1_plan.AVERAGED, ""), (f"{switch} {table1_plan.AVERAGED}", switch)):
        setting = table1_plan.Setting(4, "lwm", variant=variant)
        averaged, plain = setting.rows(1)
        assert (averaged["variant"], averaged["score"]) == (variant, -2.0)
        assert (plain["variant"], plain["score"]) == (rest, -3.0)
        assert set(plain) == set(averaged) == set(table1.COLUMNS)
        assert plain["frames"] == 10
    assert len(table1_plan.Setting(4, "lwm").rows(1)) == 1
    averaged, plain = table1_plan.ablation("").rows(1)
    assert plain["variant"] == f"{averaged['variant']} dqn.average=0"
    assert (averaged["score"], plain["score"]) == (-2.0, -3.0)


def test_every_row_of_table1_is_planned() -> None:
    """Or is what the last weights of a planned run give beside the averaged ones."""
    planned = {setting.key(seed) for setting, seed in table1.plan()}
    for size, agent, variant, preset, seed in list(planned):
        if table1_plan.AVERAGED in variant:
            rest = variant.removesuffix(table1_plan.AVERAGED).strip()
            planned.add((size, agent, rest, preset, seed))
    last = table1_plan.ablation(table1_plan.LAST)
    planned |= {last.key(seed) for seed in table1_plan.ABLATED}
    for row in table1.read():
        assert tuple(row[k] for k in table1.KEYS) in planned, row["command"]


def test_seeds_counts_those_of_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = table1.campaign_of(Options())
    first = {setting: seed for setting, seed in reversed(asked.plan)}
    found = campaign.missing([asked], 1)
    assert {(s, seed) for owners in found.values() for _, s, seed in owners} == set(first.items())
    assert max(first.values()) == 3  # as of those that average weights
    assert len(campaign.missing([asked], None)) == len(asked.plan)


def test_ablations_are_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table1, "PATH", tmp_path / "table1.csv")
    row = dict.fromkeys(table1.COLUMNS, "0") | {"size": 4, "agent": "lwm", "preset": "best"}
    scored = {"": {1: -24.0, 2: -26.0}, "dqn.gap=0": {1: -25.5, 2: -25.0}, "dqn.n_step=1": {2: -27}}
    variants = {taken_back: table1_plan.ablation(taken_back).variant for taken_back in scored}
    found = [
        row | {"variant": variants[without], "seed": seed, "score": score}
        for without, seeds in scored.items()
        for seed, score in seeds.items()
    ]
    whole = row | {"variant": "", "seed": 1, "score": -22.0}
    other = row | {"variant": variants[""], "seed": 0, "score": -99.0}  # not a planned seed
    rows.append_all(table1.PATH, table1.COLUMNS, [*found, whole, other])
    cells = [[c.strip() for c in line.split("|")] for line in table1.ablations().splitlines()[2:]]
    told = [(c[1], c[2], c[3], c[4]) for c in cells]
    assert told == [
        ("– (as it is)", "-25.00", "–", "1 2"),
        ("`dqn.n_step=1`", "-27.00", "-1.00", "2"),
        ("`dqn.gap=0`", "-25.25", "-1.50 +1.00", "1 2"),
    ]
    (line,) = table1.scores().splitlines()[2:]
    assert "-22.00" in line
    assert table1.markdown() == f"{table1.scores()}\n\n{table1.ablations()}"


def test_the_limits_beside_our_scores_are_named_by_their_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"size": 3, "agent": "lwm", "variant": "", "preset": "paper", "seed": 0, "frames": 1}
    row |= {"episodes": 4096, "score": -11.0, "score128": -11.0, "solved": 1.0, "command": "x"}
    source = {"commit": "c", "machine": "m"}
    rows.append(table1.PATH, table1.COLUMNS, {**row, "median_solved": None, **source})
    for player, score in (("bayes-optimal", -10.6), ("bayes-optimal-eps0.01", -10.7),
                          ("blind-dfs", -11.7)):  # fmt: skip
        limit = {"size": 3, "player": player, "episodes": 9, "score": score, "command": "y"}
        rows.append(limits.PATH, limits.COLUMNS, {**limit, "standard_error": 0.0, **source})
    marks = "<!-- table1: written by `lwm reproduce table1` -->\n", "<!-- /table1 -->"
    (tmp_path / "docs").mkdir()
    pages = {"README.md": table1.summary(), "docs/table1.md": table1.markdown()}
    for page in pages:
        (tmp_path / page).write_text("a {}old\n{} z".format(*marks), encoding="utf-8")
    assert main(["reproduce", "table1", "--show"]) == 0  # runs nothing, writes the tables anew
    for page, table in pages.items():
        made = (tmp_path / page).read_text(encoding="utf-8")
        assert made == f"a {marks[0]}{table}\n{marks[1]} z"
    assert table1.summary().endswith(
        "| 3×3 | `lwm` | paper | -11.00 | 1 | 100.00% | – | -10.8 | -10.70 |"
    )
    head, _, line = table1.markdown().splitlines()
    assert head.endswith("| paper | Bayes-optimal, ε = 0.01 | blind DFS, ε = 0 |")
    assert line.endswith("| -10.8 | -10.70 | -11.70 |")


def test_costs_are_told_alike() -> None:
    page = (Path(rows.__file__).parents[3] / "docs/experiments.md").read_text(encoding="utf-8")
    for name, cost in (
        ("minigrid", "25 to 30 minutes a run on one core"),
        ("noisy-tv", "not measured as a whole"),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
        runs_planned = len(experiments.find(name).plan())
        for told in (line, experiments.REGISTRY[name].here):
            assert cost in told and str(runs_planned) in told


def test_costs_of_atari_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(rows.__file__).parents[3])
    cycle = {
        row["cores"]: row["ms"] / 1000
        for row in json.loads(Path("results/bench.json").read_text())
        if (row["workload"], row["stage"]) == ("atari", "cycle")
    }
    one = table2.hours_per_million()
    assert one is not None
    two = one * cycle[2] / cycle[1]
    told = experiments.REGISTRY["table2"].here
    assert f"{50 * one:.0f} hours a run on one core" in told and f"({one:.2f} per million" in told
    page = Path("docs/experiments.md").read_text(encoding="utf-8")
    assert f"about {50 * one:.0f} hours a run on one core, {50 * two:.0f} on two" in page
    assert f"({one:.2f} and {two:.2f} hours per million frames" in page
    assert f"{cycle[1]:.2f} s a cycle of 128 actors" in Path("docs/sweeps.md").read_text()


def test_the_interval_over_seeds_is_students() -> None:
    import numpy as np

    # Mean -11, standard deviation 1, three seeds: 4.303 / sqrt(3) = 2.48.
    assert interval(np.array([-10.0, -11.0, -12.0])) == "[-13.48, -8.52]"
    assert interval(np.array([-10.0])) == "–"
    assert interval(np.array([-10.0, -11.0, -12.0]), 3) == "[-13.484, -8.516]"


def test_unknown_ids_and_useless_options_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown experiment 'table9'"):
        experiments.find("table9")
    with pytest.raises(BadInput, match="did you mean 'figure2'"):
        experiments.find("figur2")
    with pytest.raises(BadInput, match="limits does not take --only"):
        limits.main(Options(only=["4x4"]))
    with pytest.raises(BadInput, match="--show runs nothing"):
        Options(only=["4x4"], show=True)
    with pytest.raises(BadInput, match="no run of table1"):
        table1.main(Options(only=["nothing"]))
    for scale in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(BadInput, match="--scale"):
            Options(scale=scale)


def test_every_experiment_is_a_module_with_its_functions_and_a_line() -> None:
    text = experiments.listing()
    for name, entry in experiments.REGISTRY.items():
        module = experiments.find(name)
        assert callable(module.main) and module.status()
        assert entry.what in text and entry.here in text and entry.gpu in text
    # figure3_data.py and the like are parts of figure3.py.
    files = {p.stem.split("_")[0] for p in Path(experiments.__file__).parent.glob("figure*.py")}
    assert files <= set(experiments.REGISTRY), "a figure that no id leads to"


@pytest.mark.parametrize("name", ["table1", "atari", "minigrid", "noisy-tv", "claims", "figure3"])
def test_without_rows_there_is_nothing_to_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", name, "--show"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"lwm: no rows in results/{name}.csv yet") and told.count("\n") == 1


@pytest.mark.parametrize("name", ["table1", "minigrid"])
def test_a_small_scale_has_a_small_warm_up(name: str) -> None:
    module = experiments.find(name)
    for setting, seed in module.campaign_of(Options(scale=0.01)).plan:
        loop = setting.job(seed).config.loop
        assert loop.warmup_frames < loop.total_frames <= 10_000


def test_scaled_runs_are_other_runs() -> None:
    whole = {setting.job(seed).id for setting, seed in table1.plan()}
    for (setting, seed), (full, _) in zip(table1.scaled(0.25), table1.plan(), strict=True):
        job = setting.job(seed)
        frames = 75_000 if table1_plan.SHORT in full.variant else 250_000
        assert job.config.loop.total_frames == frames
        assert job.id not in whole and f"loop.total_frames={frames}" in job.command
        assert job.command.count("loop.total_frames") == 1
    assert table1.scaled(None) == table1.scaled(1.0) == table1.plan()
    # Half a percent of 50M emulator frames at 4 frames a step.
    job = atari.plan(0.005)[0][0].job(0)
    assert job.config.loop.total_frames == 62_500 and "loop.total_frames=62500" in job.command
    assert job.id != atari.plan()[0][0].job(0).id


def test_a_share_of_a_whole_number() -> None:
    assert Options().share(700) == 700
    assert Options(scale=0.5).share(701, 2) == 350
    assert Options(scale=1e-6).share(700, 2) == 2
