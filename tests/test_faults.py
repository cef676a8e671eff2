"""A very small form of every attack of the campaign, and of what the campaign itself is made of."""

from __future__ import annotations

import ast
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lwm import runs, saved, session

pytest.importorskip("ale_py", reason="needs the extra lwm[atari]")
pytest.importorskip("uvicorn", reason="needs the extra lwm[viewer]")

from faults import __main__ as campaign
from faults import (
    asking,
    damage,
    degenerate,
    disks,
    hostile,
    kills,
    mutation,
    seams,
    soak,
    viewing,
    words,
    worlds,
)
from faults.common import Child, Ended, Options, Tally, Witness, differs, small, trained
from lwm.envs import watchdog


@pytest.mark.parametrize("name", [name for name in campaign.ATTACKS if name != "soak"])
def test_every_attack_holds(name: str, tmp_path: Path) -> None:
    tally = campaign.ATTACKS[name](Options(tmp_path, "tiny"))
    assert tally.faults == []
    assert tally.tried == tally.held > 0 and tally.detail


def test_rows_replace_those_of_the_same_attack(tmp_path: Path) -> None:
    rows = tmp_path / "faults.csv"
    campaign.write(Tally("a", 3, 3, 'with, "commas"'), rows, "1")
    campaign.write(Tally("b", 1, 0, ""), rows, "1")
    campaign.write(Tally("a", 2, 2, "a shorter form"), rows, "2")
    assert rows.read_text().splitlines()[1] == 'a,3,3,"with, ""commas""",1'
    campaign.write(Tally("a", 2, 1, "that did not hold"), rows, "2")
    campaign.write(Tally("a", 4, 2, "x"), rows, "2")
    assert rows.read_text() == "attack,tried,held,detail,commit\na,4,2,x,2\nb,1,0,,1\n"


def test_the_readme_quotes_the_rows(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    text = campaign.README.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    campaign.quote(campaign.ROWS, page)
    assert campaign.BEGIN in text and page.read_text(encoding="utf-8") == text


# What judges must be able to condemn.


def test_a_run_that_went_another_way_is_noticed(tmp_path: Path) -> None:
    one = trained("labyrinth", tmp_path / "one", **{"loop.total_frames": 400})
    other = trained("labyrinth", tmp_path / "other", **{"loop.total_frames": 400, "seed": 1})
    assert differs(one, one) == "" and differs(one, other) != ""


def test_an_unnoticed_damage_would_be_condemned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = damage._victim(Options(tmp_path, "tiny"), "labyrinth")
    damage.replaced(random.Random(0), victim)
    monkeypatch.setattr(saved, "sum_of", lambda config: "the same for all")
    assert damage.judge(victim) != ""


def test_refusals_are_counted_and_excused_only_where_both_checkpoints_are_hit(
    tmp_path: Path,
) -> None:
    victim = damage._victim(Options(tmp_path, "tiny"), "labyrinth")
    older, newest = (
        victim.good[p.name]["_run"]["log_bytes"] for p in (victim.older, victim.newest)
    )
    log = victim.path / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: newest[0] - 1])
    assert damage.judge(victim) == "" and victim.found == {"older": 1}
    victim.restore()
    log.write_bytes(whole[: older[0] - 1])
    assert damage.judge(victim) == "" and victim.found == {"older": 1, "refused": 1}
    victim.restore()
    (victim.newest / "state.json").unlink()
    assert not damage.fatal(victim, [p.read_bytes() if p.exists() else None for p in victim.files])


def test_a_traceback_and_two_lines_would_be_condemned(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise KeyError(arguments[0])

    assert words.judge(["config", "--nonsense"])[1] == ""
    monkeypatch.setattr(words, "main", broken)
    assert words.judge(["config"]) == ("raised", "KeyError: 'config'")


def test_a_hostile_file_that_is_used_would_be_condemned() -> None:
    case = hostile.Case("x", ["evaluate", "x"])
    refused = "lwm: warning: x; trying the checkpoint before it\nlwm: no good checkpoint\n"
    assert hostile.judge(case, Ended(2, refused)) == ""
    for code, text in ((0, "score 1\n"), (2, ""), (2, "lwm: a\nlwm: b\n"), (3, refused)):
        assert hostile.judge(case, Ended(code, text)) != ""
    assert hostile.judge(case, Ended(2, refused, hung=True)) != ""
    assert hostile.judge(hostile.Case("x", [], harmless=True), Ended(0, "score 1\n")) == ""


def test_every_faulty_world_is_judged() -> None:
    known = {*degenerate.FINISH, *degenerate.REASONS, *degenerate.PROCESSES, "well"}
    assert known == set(worlds.HOWS)


def test_touches_of_the_disk_are_counted(tmp_path: Path) -> None:
    from lwm.files import write_bytes_atomic

    # A file: write, fsync, rename, and fsync of its directory.
    assert seams.count(lambda: write_bytes_atomic(tmp_path / "x", b"x"))[0] == 4


def test_a_kill_after_the_end_of_a_run_is_no_fault_and_a_run_that_will_not_resume_is(
    tmp_path: Path,
) -> None:
    path = trained("labyrinth", tmp_path / "run", **{"loop.total_frames": 400})
    series = kills.Series("labyrinth", path, path, 10, 1.0)
    assert "is finished" in series.drive(random.Random(0), 0)  # nobody killed it
    series.kills = 1
    assert series.drive(random.Random(0), 0) == ""


def test_a_checkpoint_that_is_lost_is_noticed(tmp_path: Path) -> None:
    whole = trained("labyrinth", tmp_path / "whole", **{"loop.total_frames": 400})
    path = tmp_path / "run"

    def witness() -> Witness:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        made = Witness(path, whole)
        assert made.look() == "" and made.frames == runs.load_checkpoint(whole).frames
        return made

    witness()
    older, newest = sorted((path / "checkpoints").iterdir())
    # The newest, told by what was seen or by the status alone.
    for known in (witness(), Witness(path, whole)):
        shutil.rmtree(newest, ignore_errors=True)
        assert f"frames were acknowledged, the newest good checkpoint is {int(older.name[5:])}" in (
            known.look()
        )
    for gone, told in ((path / "checkpoints", "no checkpoint is there"), (path, "run is gone")):
        known = witness()
        shutil.rmtree(gone)
        assert told in known.look()
    known = witness()
    (newest / "state.json").write_text("{}")
    assert "state.json" in known.look()
    # Begun anew: the same metrics, but nobody has the same times twice.
    known = witness()
    timing = path / "timing.jsonl"
    timing.write_bytes(timing.read_bytes().replace(b'"seconds": ', b'"seconds": 1'))
    assert "begun anew" in known.look()
    known = witness()
    metrics = path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"frames": 1', b'"frames": 2'))
    assert "metrics.jsonl up to the checkpoint" in known.look()


class Always(random.Random):
    """Every kill at the same touch of the disk."""

    def __init__(self, touch: int) -> None:
        super().__init__(0)
        self.touch = touch

    def random(self) -> float:
        return 0.4

    def randint(self, a: int, b: int) -> int:
        return self.touch


def test_a_run_that_begins_anew_after_a_kill_is_condemned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    touches, seconds = seams.count(lambda: trained("labyrinth", whole))
    series = kills.Series("labyrinth", path, whole, touches, seconds)

    def anew(path: Path, env: str | None) -> Any:
        shutil.rmtree(path)
        return session.start(small("labyrinth"), path)

    with monkeypatch.context() as patch:
        patch.setattr(session, "reopen", anew)
        assert series.drive(Always(touches * 2 // 3), 2) != ""
    assert series.kills == 2
    shutil.rmtree(path)
    again = kills.Series("labyrinth", path, whole, touches, seconds)
    assert again.drive(Always(touches * 2 // 3), 1) == "" and again.kills == 1


def test_a_fault_without_a_kill_is_tallied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "trained", lambda workload, path: path)
    monkeypatch.setattr(kills.Series, "drive", lambda self, rng, most: "broken")
    tally = kills.sigkill(Options(tmp_path, "tiny"))
    assert tally.tried > tally.held == 0 and "broken" in tally.faults[0]


def test_a_second_signal_that_is_not_obeyed_would_be_condemned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("labyrinth", tmp_path / "whole")
    assert asking.asked_twice(tmp_path / "well", whole, random.Random(0)) == ""
    monkeypatch.setattr(session, "_stop_at_once", lambda signum, frame, handler: None)
    monkeypatch.setattr(asking, "PATIENCE", 0.1)  # it is let go after a second
    fault = asking.asked_twice(tmp_path / "deaf", whole, random.Random(0))
    assert "stopped;" in fault or fault == "the second signal was not obeyed"


def test_a_second_process_must_be_refused_for_the_right_reason() -> None:
    used, fine = Ended(2, "lwm: run is in use by process 7\n"), Ended(0, "")
    assert asking.judge_two(used, fine, (asking.IN_USE,)) == ""
    assert "another reason" in asking.judge_two(Ended(2, "lwm: no such run\n"), fine, ("in use",))
    for refused in (Ended(0, ""), Ended(2, ""), Ended(2, used.text, hung=True), Ended(1, "lwm: x")):
        assert asking.judge_two(refused, fine, (asking.IN_USE,)) != ""
    assert asking.judge_two(used, Ended(1, "lwm: x"), (asking.IN_USE,)) != ""


def test_a_viewer_that_does_not_answer_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = ("127.0.0.1", server.getsockname()[1])
        assert viewing.send(where, b"GET / HTTP/1.1\r\n\r\n", 0.05) == viewing.HUNG
        tally = Tally("viewer")
        viewing.count_answer(tally, b"", viewing.HUNG)
    assert tally.held == 0 and tally.tried == 1


def test_mutants_are_quoted_by_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, page = tmp_path / "faults.csv", tmp_path / "README.md"
    page.write_text(f"a\n{campaign.BEGIN}{campaign.END}\n", encoding="utf-8")
    monkeypatch.setattr(campaign, "ROWS", rows)
    monkeypatch.setattr(campaign, "README", page)
    mutation.tell(10, 9, "killed 90.0%", rows)
    assert "| mutants of the core | 10 | 9 | killed 90.0% |" in page.read_text(encoding="utf-8")
    before = page.read_text(encoding="utf-8")
    mutation.tell(20, 20, "elsewhere", tmp_path / "other.csv")
    assert page.read_text(encoding="utf-8") == before


def test_a_leftover_counts_once(tmp_path: Path) -> None:
    series = kills.Series("labyrinth", tmp_path, tmp_path, 10, 1.0)
    folder = tmp_path / "checkpoints"
    (folder / "rows").mkdir(parents=True)
    assert not series._left_anew()
    (folder / "step-1.tmp-7").mkdir()
    assert series._left_anew() and not series._left_anew()
    (folder / "rows" / ".rows-1.tmp-8").touch()
    assert series._left_anew() and not series._left_anew()


def test_a_full_disk_that_costs_a_checkpoint_is_condemned(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "run"
    kept = disks.kept_before(whole, lambda: trained("labyrinth", whole, **disks.RARE))
    assert kept[0] == set() and len(kept[-1]) == 2
    shutil.copytree(whole, path)
    ended = Ended(1, "lwm: cannot write: No space left on device")
    assert disks.judge(ended, path, tmp_path / "a", whole, kept[-1]) == ""
    shutil.rmtree(path / "checkpoints" / min(kept[-1]))
    fault = disks.judge(ended, path, tmp_path / "b", whole, kept[-1])
    assert fault == f"{min(kept[-1])} was good before and is gone"
    # Also where only the status tells that there was one.
    shutil.rmtree(path / "checkpoints" / max(kept[-1]))
    assert "acknowledged" in disks.judge(ended, path, tmp_path / "c", whole)


# Mutants.


def test_an_old_run_and_a_fresh_one_take_turns(tmp_path: Path) -> None:
    """Two processes that tell frames as fast as they can, the second with twice the work for each:
    only one of them works at a time."""
    source = (
        "import sys, time, json\n"
        "work, path = float(sys.argv[1]), sys.argv[2]\n"
        "for n in range(10**9):\n"
        "    until = time.process_time() + work\n"
        "    while time.process_time() < until: pass\n"
        "    row = {'frames': 10 * n, 'seconds': n, 'frames_per_second': 1}\n"
        "    print(json.dumps(row), file=open(path, 'a'), flush=True)\n"
    )

    def run(name: str, work: float) -> soak.Run:
        path = tmp_path / name
        path.mkdir()
        command = [sys.executable, "-c", source, str(work), str(path / "timing.jsonl")]
        return soak.Run(Child(lambda: os.execv(sys.executable, command), tmp_path / "log"), path)

    pair = (run("old", 0.01), run("fresh", 0.02))
    try:
        while not all(each.frames for each in pair):
            time.sleep(0.05)
        for each in pair:
            each.signal(signal.SIGSTOP)
        still = pair[1].frames
        old, fresh = soak.turns(pair, 3, 1.0)
        told = pair[1].frames
        assert told > still and 1.5 < old / fresh < 2.6
        time.sleep(0.3)
        assert pair[1].frames == told  # they stand still again
    finally:
        for each in pair:
            each.child.kill()
            each.child.wait()


def test_processor_time_is_of_a_process_and_its_children() -> None:
    before = soak.processor(os.getpid())
    subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"])
    assert 0.4 < soak.processor(os.getpid()) - before < 30


def test_a_handle_that_stays_is_noticed_and_a_file_being_written_is_named() -> None:
    log, other, passing = ("3", "metrics.jsonl"), ("4", "socket:[1]"), ("5", "state.json.tmp")
    steady = frozenset({log, other})
    written, leaked = steady | {passing}, steady | {("5", "left open")}
    assert soak.held([steady] * 4) == (True, set())
    assert soak.held([written, steady, written, steady, written]) == (True, {"state.json.tmp"})
    assert soak.held([steady, steady, leaked, leaked]) == (False, {"left open"})
    assert not soak.held([steady, steady, frozenset({log}), frozenset({log})])[0]
    swapped = frozenset({log, ("4", "socket:[2]")})
    assert not soak.held([steady, steady, swapped, swapped])[0]


def test_mutants_of_a_line() -> None:
    source = 'def f(x: int = 0) -> int:\n    """1 + 1"""\n    return x + 2 if x < 3 else -x\n'
    names = [name for name, _ in mutation.mutants(source)]
    changed = {name.partition(": ")[2] for name in names}
    assert {"x + 2 -> x - 2", "x < 3 -> x <= 3", "-x -> x", "2 -> 3", "2 -> 0", "0 -> 1"} <= changed
    assert not any("1 + 1" in name for name in names)  # texts are left alone
    for _, tree in mutation.mutants(source):
        compile(ast.fix_missing_locations(tree), "mutant", "exec")


# The watchdog.


def test_a_block_that_takes_too_long_is_left() -> None:
    with pytest.raises(watchdog.Hung, match=r"no answer for 0\.05 s"), watchdog.limited(0.05):
        while True:
            pass
    with watchdog.limited(60):  # and the next one has its own time
        pass
