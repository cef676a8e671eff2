"""A very small form of every attack of the campaign, and of what the campaign itself is made of."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from lwm import saved

pytest.importorskip("ale_py", reason="needs the extra lwm[atari]")
pytest.importorskip("uvicorn", reason="needs the extra lwm[viewer]")

from faults import __main__ as campaign
from faults import damage, degenerate, kills, mutation, seams, soak, words, worlds
from faults.common import Options, Tally, differs, trained
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


def test_a_traceback_and_two_lines_would_be_condemned(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise KeyError(arguments[0])

    assert words.judge(["config", "--nonsense"])[1] == ""
    monkeypatch.setattr(words, "main", broken)
    assert words.judge(["config"]) == ("raised", "KeyError: 'config'")


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
    series = kills.Series("labyrinth", path, 10, 1.0)
    assert "is finished" in series.drive(random.Random(0), 0)  # nobody killed it
    series.kills = 1
    assert series.drive(random.Random(0), 0) == ""


# Mutants.


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
