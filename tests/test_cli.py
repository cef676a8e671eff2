"""The command line as a user meets it: one line for every mistake, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lwm import __version__, files, runs, session
from lwm.cli import main
from lwm.commands import LONGEST_NAME, describe, run_name
from lwm.config import Config, fields, load_preset
from lwm.episodes import read_episode
from lwm.progress import ProgressBar
from lwm.types import Event, Stage

SMALL = ["loop.total_frames=500", "loop.checkpoint_every_frames=300", "evaluation.episodes=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of preset debug; tests that change it take a copy."""
    path = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "labyrinth", *SMALL, "--preset", "debug", "--out", str(path)]) == 0
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)


def tree(path: Path) -> dict[str, bytes | None]:
    """Every name below ``path`` with its content."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None
        for p in sorted(path.rglob("*"))
    }


def lwm(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "lwm.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **environment,
        },
    )


BAD = [
    # arguments, what the line must say
    ([], "the following arguments are required: command"),
    (["trian"], "invalid choice: 'trian'"),
    (["train"], "no workload; choose from labyrinth"),
    (["train", "doom"], "unknown workload 'doom'; choose from labyrinth, atari, gym"),
    (["train", "labirynth"], "atari, gym; did you mean 'labyrinth'?"),
    (["train", "env.size=3"], "name the workload before settings"),
    (["train", "labyrinth", "--size"], "expected one argument"),
    (["train", "labyrinth", "--size", "three"], "env.size='three' is not a valid int"),
    (["train", "labyrinth", "--size", "1"], "env.size=1 is outside [2, 64]"),
    (["train", "labyrinth", "--size", "-3"], "env.size=-3 is outside"),
    (["train", "labyrinth", "--size", "1e400"], "not a valid int"),
    (["train", "labyrinth", "--frames", "0"], "loop.total_frames=0 is outside"),
    (["train", "labyrinth", "--frames", "1.5"], "not a valid int"),
    (["train", "labyrinth", "--frames", "nan"], "not a valid int"),
    (["train", "labyrinth", "--seed", "-1"], "seed=-1 is outside"),
    (["train", "labyrinth", "--seed", "99999999999"], "seed=99999999999 is outside"),
    (["train", "labyrinth", "--seed", ""], "seed='' is not a valid int"),
    (["train", "labyrinth", "--agent", "lvm"], "unknown agent 'lvm'; did you mean 'lwm'?"),
    (["train", "labyrinth", "--agent", "ngu"], "unknown agent 'ngu'"),
    (["train", "labyrinth", "--agent", "icm"], "agent 'icm' is for workload gym, not labyrinth"),
    (["train", "gym"], "no environment; give --env ID"),
    (["train", "gym", "--env", "CartPole-v1", "env.size=3"], "env.size means nothing for gym"),
    (["train", "gym", "--env", "CartPole-v1", "--agent", "mbie-eb"], "agent 'mbie-eb' counts"),
    (["train", "gym", "--env", "Pendulum-v1"], "Pendulum-v1 has the action space Box"),
    (["train", "labyrinth", "--preset", "papr"], "did you mean 'paper'?"),
    (["train", "labyrinth", "--presett", "paper"], "unrecognized argument '--presett'"),
    (["train", "labyrinth", "--seed", "3", "extra"], "unrecognized argument 'extra'"),
    (["train", "labyrinth", "dqn.gama=0.9"], "unknown setting 'dqn.gama'; did you mean"),
    (["train", "labyrinth", "dqn.gamma"], "'dqn.gamma' is not of the form key=value"),
    (["train", "labyrinth", "dqn.gamma="], "dqn.gamma='' is not a valid float"),
    (["train", "labyrinth", "=0.9"], "unknown setting ''"),
    (["train", "labyrinth", "dqn.gamma=nan"], "dqn.gamma='nan' is not a valid float"),
    (["train", "labyrinth", "dqn.gamma=2"], "dqn.gamma=2.0 is outside [0, 1]"),
    (["train", "labyrinth", "dqn.reset_state=maybe"], "is not a valid bool"),
    (
        ["train", "labyrinth", "intrinsic.boundary=wrap"],
        "is not one of 'terminal', 'mask', 'reset'",
    ),
    (["train", "labyrinth", "workload=atari"], "name the workload first: lwm train atari"),
    (["train", "labyrinth", "replay.capacity_steps=100"], "holds 12 rows per actor"),
    (["train", "labyrinth", "loop.warmup_frames=80"], "gives 10 rows per actor"),
    (["train", "labyrinth", "preset=official"], "--preset official"),
    (["train", "labyrinth", "a\nb\x1b[31m=1"], "unknown setting 'a\\nb"),
    (["train", "labyrinth", "--out", "file"], "cannot write to file: File exists"),
    (["train", "labyrinth", "--out", "file/run"], "cannot write to file/run: Not a directory"),
    (["train", "labyrinth", "--out", "x" * 300], "File name too long"),
    (["train", "labyrinth", "--out", "run"], "run already has a run (config.json)"),
    (["train", "--resume"], "expected one argument"),
    (["train", "--resume", "nowhere"], "nowhere does not exist"),
    (["train", "--resume", "file"], "file is not a run (no config.json)"),
    (["train", "--resume", "empty"], "empty is not a run (no config.json)"),
    (["train", "--resume", "run"], "run is finished: nothing to resume"),
    (["train", "labyrinth", "--resume", "run"], "give no other settings"),
    (["train", "--resume", "early", "--seed", "3"], "give no other settings"),
    (["train", "--resume", "early", "--frames", "9"], "give no other settings"),
    (["train", "--resume", "early", "--size", "4"], "give no other settings"),
    (["train", "--resume", "early", "--agent", "dqn"], "give no other settings"),
    (["train", "--resume", "early", "--preset", "paper"], "give no other settings"),
    (["train", "--resume", "early", "--out", "x"], "give no other settings"),
    (["train", "--resume", "damaged"], "damaged/config.json is not valid JSON"),
    (["train", "--resume", "other"], "not a run config of format 1"),
    (["train", "--resume", "unknown"], "unknown setting 'dqn.gama'"),
    (["evaluate"], "the following arguments are required: DIR"),
    (["evaluate", "nowhere"], "nowhere does not exist"),
    (["evaluate", "x" * 300], "does not exist"),
    (["evaluate", "empty"], "empty is not a run"),
    (["evaluate", "early"], "early has no checkpoint yet"),
    (["evaluate", "broken"], "no good checkpoint among the 2 in broken/checkpoints"),
    (["evaluate", "run", "--episodes", "0"], "'0' is not a whole number from 1 to 10,000,000"),
    (
        ["evaluate", "run", "--episodes", "many"],
        "'many' is not a whole number from 1 to 10,000,000",
    ),
    (["evaluate", "run", "--record", "-2"], "'-2' is not a whole number from 1 to 10,000,000"),
    (["evaluate", "run", "dqn.gamma=1"], "unrecognized argument 'dqn.gamma=1'"),
    (["config", "--preset", "bset"], "unknown preset 'bset' of labyrinth; did you mean 'best'?"),
    (["config", "dqn.gamma=x"], "dqn.gamma='x' is not a valid float"),
    (["reproduce", "tabel1"], "unknown experiment 'tabel1'; did you mean 'table1'?"),
    (["reproduce", "figure2", "--scale", "2"], "'2' is not a fraction in (0, 1]"),
    (["reproduce", "figure5", "--runs", "nowhere"], "nowhere does not exist"),
    (["report", "nowhere"], "nowhere does not exist"),
    (["report", "empty"], "no run under empty"),
    (["bench", "doom"], "invalid choice: 'doom'"),
]


@pytest.fixture
def clutter(tmp_path: Path, trained: Path) -> Path:
    """A directory with what the bad inputs name: runs in every bad state, a file, nothing."""
    (tmp_path / "file").write_text("not a directory\n")
    (tmp_path / "empty").mkdir()
    shutil.copytree(trained, tmp_path / "run")
    config = json.loads((trained / "config.json").read_text())
    for name, text in {
        "damaged": '{"format": 1, "conf',
        "other": json.dumps(config | {"format": 7}),
        "unknown": json.dumps(config | {"config": {"dqn": {"gama": 0.9}}}),
        "early": json.dumps(config),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    shutil.copytree(trained, tmp_path / "broken")
    for array in (tmp_path / "broken" / "checkpoints").glob("*/arrays.safetensors"):
        array.write_bytes(array.read_bytes()[:-1])
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=[ascii(" ".join(arguments))[:50] for arguments, _ in BAD]
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, clutter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(clutter)
    assert main(arguments) == 2
    stdout, stderr = capsys.readouterr()
    *warnings, line = stderr.splitlines()
    assert line.startswith("lwm: ") and words in line
    assert all(w.startswith("lwm: warning: ") and arguments[-1] == "broken" for w in warnings)
    assert stderr.endswith("\n") and "\x1b" not in stderr and stdout == ""
    assert tree(clutter) == before


def test_a_refused_run_stays_as_it_was(clutter: Path) -> None:
    main(["train", "--resume", "run"])
    assert runs.read_status(clutter / "run")["state"] == "finished"
    # Its lock was not kept either: a reader and a new run elsewhere find all in order.
    assert main(["evaluate", "run", "--episodes", "2"]) == 0


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = lwm("train", "labyrinth", "--size", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lwm: env.size=1 is outside [2, 64]\n"
    assert list(tmp_path.iterdir()) == []


def test_help_is_there_and_cheap(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from lwm.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["train", "--help"], ["--version"], ["config"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.stderr == "False\n"
        assert done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for command in ("train", "evaluate", "reproduce", "report", "bench", "quickstart", "config"):
        assert f"\n    {command}" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"lwm {__version__}\n"


def test_config_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    foreign = ("atari.", "gym.")  # a labyrinth reads none of these
    assert len(lines) == len([k for k, _ in fields(Config()) if not k.startswith(foreign)]) + 1
    assert "  dqn.gamma=0.99  discount  [POL DQN]" in lines
    assert not any(line.startswith("* ") for line in lines[:-1])


def test_config_of_any_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--workload", "gym", "--preset", "minigrid"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "* gym.pixel_unit=5.0" in "\n".join(lines)
    assert lines[-1] == "* differs from preset default"


def test_config_marks_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "env.size=5", "--preset", "official", "--seed", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = {line[2:].split("=")[0] for line in lines[:-1] if line.startswith("* ")}
    assert {"preset", "seed", "env.size", "dqn.clip_norm", "dqn.reset_state"} <= marked
    assert "dqn.gamma" not in marked
    assert "* env.size=5  rooms per side  [Sec. 4.1]" in lines


@pytest.mark.parametrize(
    "arguments",
    [
        ["env.size=5", "dqn.tau=0.5", "--preset", "debug", "--seed", "4"],
        ["--preset", "debug", "env.size=5", "--seed", "4", "dqn.tau=0.5"],
        ["--preset", "debug", "--seed", "4", "env.size=5", "dqn.tau=0.5"],
    ],
)
def test_settings_stand_anywhere(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    for value in ("env.size=5", "dqn.tau=0.5", "seed=4", "preset=debug", "dqn.hidden=16"):
        assert any(line.startswith(f"* {value} ") for line in lines)
    assert main(["train", "labyrinth", *arguments, "--out", "made", "loop.total_frames=0"]) == 2
    assert "loop.total_frames=0 is outside" in capsys.readouterr().err


def test_config_into_a_closed_pipe() -> None:
    # `lwm config | head -1`: the reader leaves early, and nobody complains.
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lwm.cli", "config"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    os.close(write)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")


def test_train_evaluate_record(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    arguments = ["--preset", "debug", "--seed", "1", "--size", "3", "--agent", "lwm", "--quiet"]
    assert main(["train", "labyrinth", *SMALL, *arguments, "--out", str(path)]) == 0
    stdout, stderr = capsys.readouterr()
    score, where = stdout.splitlines()
    assert score.startswith("score -") and " over 8 episodes at 50" in score
    assert where == f"run: {path}"
    assert stderr == ""
    config = runs.read_config(path)
    assert (config["seed"], config["env"]["size"], config["preset"]) == (1, 3, "debug")
    trained_score = runs.read_evaluation(path)

    assert main(["evaluate", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [score]
    assert runs.read_evaluation(path) == trained_score
    assert main(["evaluate", str(path), "--episodes", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert " over 1 episodes " in shown and "[" not in shown
    (path / "evaluation.json").unlink()
    assert main(["evaluate", str(path), "--episodes", "8"]) == 0
    assert runs.read_evaluation(path) == trained_score and capsys.readouterr().out == score + "\n"
    before = tree(path / "checkpoints")
    for _ in range(2):  # recording again replaces
        assert main(["evaluate", str(path), "--episodes", "5", "--record", "2"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert " over 5 episodes " in shown[0]
        assert shown[1] == "not written: the run's own score is over 8 episodes"
        assert shown[2] == f"recorded 2 episodes in {path / 'episodes'}"
        assert runs.read_evaluation(path) == trained_score
        assert len(list((path / "episodes").iterdir())) == 2
    assert tree(path / "checkpoints") == before
    assert runs.read_status(path)["state"] == "finished"
    for file in sorted((path / "episodes").iterdir()):
        episode = read_episode(file)
        episode.check()
        rows = episode.fields
        assert episode.meta["score"] == rows["r_t"].sum() == 1 - episode.rows
        assert rows["is_last"].tolist() == [False] * (episode.rows - 1) + [True]
        assert rows["r_in"][0] == 0
        assert rows["doors"].shape == (9, 4)
        # The observation is the doors of the room the agent is in.
        assert (rows["doors"][rows["room"]] == rows["obs"]).all()
    (path / "episodes").rename(tmp_path / "elsewhere")
    (path / "episodes").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    assert main(["evaluate", str(path), "--episodes", "5", "--record", "3"]) == 2
    said = f"lwm: {path / 'episodes'} is a link, which is not followed\n"
    assert capsys.readouterr().err == said and tree(tmp_path / "elsewhere") == before


def test_recorded_random_walks_are_random(tmp_path: Path) -> None:
    arguments = [*SMALL, "--preset", "debug", "--agent", "random", "--quiet", "--size", "4"]
    assert main(["train", "labyrinth", *arguments, "env.time_limit=400", "--out", "run"]) == 0
    assert main(["evaluate", "run", "--record", "1"]) == 0
    (file,) = (tmp_path / "run" / "episodes").iterdir()
    actions = read_episode(file).fields["a_tm1"][1:].tolist()
    assert min(map(actions.count, range(4))) > 0.15 * len(actions)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 120 GB")]
)
def test_too_little_memory_is_one_line(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def large(config: Config) -> Any:
        raise error

    monkeypatch.setattr(session, "Trainer", large)
    assert main(["train", "labyrinth", "--out", "run"]) == 2
    assert capsys.readouterr().err == (
        "lwm: this config needs more memory than there is (try less than "
        "replay.capacity_steps=100000)\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_default_directory_is_the_name_of_the_run(tmp_path: Path) -> None:
    arguments = [*SMALL, "--preset", "debug", "--agent", "random", "--quiet"]
    assert main(["train", "labyrinth", *arguments]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name == run_name(
        load_preset("debug", {"agent": "random", **dict(s.split("=") for s in SMALL)})
    )
    assert runs.read_status(made)["state"] == "finished"
    assert main(["train", "labyrinth", *arguments]) == 2  # and is not overwritten


def test_run_names() -> None:
    assert run_name(load_preset("paper")) == "labyrinth-3x3-lwm-paper-seed0"
    config = load_preset("official", {"env.size": 5, "agent": "dqn", "seed": 7})
    assert run_name(config) == "labyrinth-5x5-dqn-official-seed7"
    longer = run_name(load_preset("paper", {"dqn.gamma": 0.9, "dqn.reset_state": False}))
    assert longer.startswith("labyrinth-3x3-lwm-paper-seed0-")
    assert "gamma=0.9" in longer and "reset_state=False" in longer
    # One setting, one name: two sections have a learning rate.
    rates = [{f"{part}.learning_rate": 1e-3} for part in ("dqn", "world_model")]
    assert len({run_name(load_preset("paper", rate)) for rate in rates}) == 2
    # What follows the size is the preset's own.
    best = load_preset("best", {"env.size": 5, "seed": 1})
    assert run_name(best) == "labyrinth-5x5-lwm-best-seed1"


def test_long_run_names_are_cut_and_stay_apart() -> None:
    """A file system refuses names of more than 255 bytes."""
    names = ("features", "hidden", "head")
    layers = [f"{part}.{name}" for part in ("dqn", "world_model") for name in names]
    many = dict.fromkeys([*layers, "replay.batch", "evaluation.episodes", "loop.actors"], 7)
    long, other = (run_name(load_preset("paper", {**many, "dqn.head": n})) for n in (8, 9))
    assert len(long) == len(other) == LONGEST_NAME < 255
    assert long != other and long.startswith("labyrinth-3x3-lwm-paper-seed0-")
    assert long == run_name(load_preset("paper", {**many, "dqn.head": 8}))
    foreign = run_name(load_preset("default", {"gym.env": "Über" * 80 + "-v0"}, "gym"))
    assert len(foreign.encode()) <= LONGEST_NAME


def test_description_by_hand() -> None:
    result = {
        "frames": 1_000_000,
        "episodes": 4096,
        "score": -10.804,
        "low": -11.0,
        "high": -10.5,
        "score128": -10.9,
        "solved": 0.9995,
        "median_solved": -11.0,
    }
    assert describe(result) == (
        "score -10.80 [-11.00, -10.50] over 4,096 episodes at 1,000,000 frames; "
        "first 128: -10.90; solved 99.95%, median of solved -11"
    )
    assert describe(result | {"median_solved": None}).endswith("solved 99.95%")


def test_resume_goes_on_where_it_was(tmp_path: Path, trained: Path) -> None:
    # A run that died after its first checkpoint: only that and the logs are left.
    path = tmp_path / "run"
    shutil.copytree(trained, path)
    checkpoints = sorted((path / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    shutil.rmtree(checkpoints[1])
    (path / "evaluation.json").unlink()
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(status | {"state": "running"}))
    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    assert (path / "metrics.jsonl").read_bytes() == (trained / "metrics.jsonl").read_bytes()
    assert runs.read_evaluation(path) == runs.read_evaluation(trained)
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == [p.name for p in checkpoints]


def test_pretraining_has_a_bar_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar(100, 0)
    for k in range(100):
        bar(Event("cycle", 10, stage=Stage("Φ", k, 100)), 1.0)
    told = capsys.readouterr().err
    assert bar._stage is None and "\x1b" not in told, "a log file gets no control codes"
    assert told.count("pretraining Φ") == 1, "and a line now and then"
    bar._live = True
    for stage in [*(Stage("Φ", k, 3) for k in (1, 2, 3)), Stage("world model", 1, 5)]:
        bar(Event("cycle", 40, stage=stage), 1.0)
        assert bar._stage is not None and (bar._stage.n, bar._stage.total) == stage[1:]
        assert bar._stage.desc == f"pretraining {stage.name}"
    bar(Event("cycle", 44), 2.0)
    assert bar._stage is None and bar._bar.n == 44, "it moves with every cycle"
    bar.close()
    told = capsys.readouterr().err
    assert "pretraining Φ" in told and "pretraining world model" in told


def test_progress_is_shown_unless_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--preset", "debug", "--agent", "random"]
    assert main(["train", "labyrinth", *arguments, "--out", "loud"]) == 0
    assert "return=" in capsys.readouterr().err
    assert main(["train", "labyrinth", *arguments, "--out", "still", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    loud, still = tmp_path / "loud", tmp_path / "still"
    assert (loud / "metrics.jsonl").read_bytes() == (still / "metrics.jsonl").read_bytes()
