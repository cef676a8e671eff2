"""The benchmark's structure and its count of operations; speed itself is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lwm import config, kernels, learner, updates
from lwm.bench import atari, common, cost, report
from lwm.bench import labyrinth as bench
from lwm.bench.probe import LEAVES, Probe
from lwm.training import Trainer


def tiny(**changes: Any) -> config.Config:
    """Widths and lengths small enough to count by hand: windows of 1 + 2 + 1 rows, 7 of them."""
    sizes = {
        "replay.batch": 7,
        "replay.burn_in": 1,
        "replay.unroll": 2,
        "dqn.features": 2,
        "dqn.hidden": 3,
        "dqn.head": 5,
        "world_model.features": 2,
        "world_model.hidden": 3,
        "world_model.head": 5,
    }
    return config.load_preset("paper", sizes | changes)


def flops(c: config.Config, actions: int = 4) -> dict[str, float]:
    return {stage: found.flop for stage, found in cost.costs(c, actions).items()}


def test_operations_by_hand() -> None:
    # DQN, a row: FC 2·9·2 = 36; GRU 2·(3·3)·(2 + 3) = 90; head 2·(10·3 + 5·4 + 5) = 110.
    # World model, a row: FC 2·8·2 = 32; GRU 90; head 2·(5·3 + 5·4) = 70.
    # A window has 4 rows, 3 after the burn-in; the world model predicts 3 of them.
    found = flops(tiny())
    assert found["target"] == found["online"] == 7 * 4 * (36 + 90) + 7 * 3 * 110 == 5838
    assert found["backward"] == 7 * 3 * (36 + 2 * 90 + 2 * 110) == 9156
    assert found["world_model"] == 7 * 3 * (2 * 32 + 3 * 90 + 3 * 70) == 11424
    assert found["learner"] == 5838 + 5838 + 9156 + 11424
    assert found["act"] == 8 * (36 + 90 + 110 + 32 + 90 + 70)
    assert found["cycle"] == found["act"] + found["learner"] / 4


def test_operations_of_other_agents() -> None:
    assert "world_model" not in flops(tiny(agent="dqn"))
    assert flops(tiny(agent="dqn"))["learner"] == 5838 + 5838 + 9156
    # The feed-forward stand-in for the GRU: 2·2·3 = 12 a row.
    feed_forward = flops(tiny(agent="lwm-ff"))
    assert feed_forward["world_model"] == 7 * 3 * (2 * 32 + 3 * 12 + 3 * 70)


def test_bytes_by_hand() -> None:
    found = {stage: c.bytes for stage, c in cost.costs(tiny(), 4).items()}
    # Numbers in and out of a row, and weights.  DQN: FC 9 -> 2, 18; GRU 2 + 3 -> 3, 45; head
    # 3 -> 10, 30 and 10 -> 5, 25.  28 rows pass the first two, 21 the head.
    first, head = 28 * (11 + 8) + 18 + 45, 21 * (13 + 15) + 30 + 25
    assert found["target"] == found["online"] == 4 * (first + head)
    # Backward over 21 rows: FC 9 + 2; GRU 2·5 + 3; head 2·3 + 10 and 2·10 + 5; weights and their
    # gradients, of the FC gradients only.
    rows, weights = 21 * (11 + 13 + 16 + 25), 18 + 2 * (45 + 30 + 25)
    assert found["backward"] == 4 * (rows + weights)
    # World model: FC 8 -> 2, 16; GRU 45; head 3 -> 5, 15 and 5 -> 4, 20; Adam 10 times 96 weights.
    forward = 21 * (10 + 8 + 8 + 9) + 96
    backward = 21 * (10 + 13 + 11 + 14) + 16 + 2 * 80
    assert found["world_model"] == 4 * (forward + backward + 10 * 96)
    assert found["optimiser"] == 4 * 13 * 118
    # A row in replay: 4 bits, action 8, reward, discount and bonus 4 each, two flags; 7·4 rows and
    # 7 states of 3 numbers are read and written.
    assert found["sample"] == 2 * (7 * 4 * 26 + 7 * 12)
    assert found["env"] == 8 * 26
    acted = 4 * (8 * (11 + 8 + 28 + 10 + 8 + 8 + 9) + 118 + 96)
    assert found["act"] == acted + 8 * (26 + 12)
    assert found["priorities"] == 7 * 4 * 3
    assert cost.costs(tiny(**{"dqn.average": 0.9}), 4)["optimiser"].bytes == 4 * 16 * 118


def test_atari_bytes_by_hand() -> None:
    """A frame of 84² pixels becomes 12,800, 5,184 and 3,136 numbers, by 2,048, 32,768 and 36,864
    weights; in bfloat16 activations take half."""
    paper = config.load_preset("paper", {"precision": "float32"}, "atari")
    layers = cost.trunk(4)
    moved = cost.forward(layers, 10).bytes
    assert moved == 10 * (7056 + 4 * (2 * 12_800 + 2 * 5_184 + 3_136)) + 4 * 71_680
    half = cost.forward(cost.trunk(2), 10).bytes
    assert moved - half == 10 * 2 * (2 * 12_800 + 2 * 5_184 + 3_136)
    found = cost.costs(paper, 18)
    assert found["sample"].bytes == 16 * 125 * (22 + 7056) + 16 * 4 * 512 + 512 * 7056
    phi = 71_680 + 3136 * 32
    assert found["encoder"].bytes == (
        cost.forward([*layers, cost.dense(3136, 32)], 512).bytes
        + cost.backward([*layers, cost.dense(3136, 32)], 512).bytes
        + 40 * phi
    )


@pytest.mark.parametrize(("workload", "every"), [("labyrinth", 4), ("atari", 1)])
def test_a_cycle_is_the_sum_of_its_stages(workload: str, every: int) -> None:
    paper = config.load_preset("paper", workload=workload)
    found, calls = cost.costs(paper, 4), cost.calls_per_cycle(paper)
    leaves = [stage for stage in LEAVES if stage in found]
    assert calls["act"] == calls["env"] == 1 and calls["learner"] == 1 / every
    for i in range(2):
        total = sum(found[stage][i] * calls[stage] for stage in leaves)
        assert found["cycle"][i] == pytest.approx(total)


def trained(c: config.Config) -> Trainer:
    trainer = Trainer(c)
    events = trainer.run()
    while trainer.learner.updates < 1:
        next(events)
    return trainer


def test_operations_as_torch_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix product of real cycles, counted as they run: the watch reads the counter."""
    monkeypatch.setattr(kernels, "library", lambda: None)  # torch sees none of the compiled ones

    def in_place(total: list[int], a: list[int], b: list[int], **_: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    debug = config.load_preset("debug", {"env.time_limit": 12})
    trainer, wanted, calls = trained(debug), flops(debug), cost.calls_per_cycle(debug)
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
    probe = Probe(lambda: float(counter.get_total_flops()))
    with counter, probe.on(trainer):
        for _ in range(4):
            probe.cycle(trainer.cycle)
    found = probe.take()
    assert set(wanted) == set(found) - {"encoder"}
    for stage, count in wanted.items():
        assert found[stage] == 4 * calls[stage] * count, stage


def test_the_watch_stops_for_what_is_inside_and_leaves_nothing_behind() -> None:
    """A clock that moves by 1 with every look: the sums are known, whatever the functions do."""
    trainer = trained(config.load_preset("debug"))
    before = (updates.learn, learner.rewarded, torch.Tensor.backward, trainer.replay.sample)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    probe = Probe(clock)
    with probe.on(trainer):
        for _ in range(4):
            probe.cycle(trainer.cycle)
        with pytest.raises(TypeError):
            learner.rewarded()  # fails, and the watch still stops
    found = probe.take()
    assert all(found[stage] > 0 for stage in found if stage != "encoder")
    assert found["encoder"] == 0
    assert sum(found[stage] for stage in LEAVES) < found["cycle"]
    assert found["learner"] < found["cycle"]
    assert (updates.learn, learner.rewarded, torch.Tensor.backward) == before[:3]
    assert trainer.replay.sample == before[3] and "sample" not in vars(trainer.replay)
    assert "states" not in vars(trainer.learner.target)
    assert not any(probe.take().values())


def test_rows_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def debug(name: str, overrides: dict[str, Any]) -> config.Config:
        assert name == "paper"
        return config.load_preset("debug", overrides)

    monkeypatch.setattr(bench, "load_preset", debug)
    monkeypatch.setattr(bench, "_LANES", 8)
    out = tmp_path / "results" / "bench.json"
    text = bench.run(0.0, out)
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["stage"] for row in rows] == [*(s for s in LEAVES if s != "encoder"), *SUMS]
    check(rows, "labyrinth", text, str(out))
    for word in ("SyncVectorEnv", "aim", "frames/s", "minutes", "bfloat16"):
        assert word in text


SUMS = ("learner", "cycle")


def check(rows: list[dict[str, Any]], workload: str, *text: str) -> None:
    """The shape of any workload's rows; ``text`` and what must be in it."""
    for row in rows:
        assert tuple(row) == common.COLUMNS
        assert (row["workload"], row["cores"], row["dtype"]) == (workload, 1, "float32")
        assert row["ms"] > 0 and row["mbytes"] > 0 and row["of_copy"] > 0
        assert (row["gflop"] is None) == (row["of_matmul"] is None)
        assert row["stage"] in text[0]
    stages = {row["stage"]: row for row in rows}
    idle = {stage for stage, row in stages.items() if row["gflop"] is None}
    assert idle == {"env", "sample", "optimiser", "priorities"}
    assert [row["stage"] for row in rows if row["of_theirs"]] == ["env"]
    cycle = stages["cycle"]["ms"]
    for row in rows:
        assert row["share"] == pytest.approx(row["ms"] * row["calls"] / cycle)
    assert 0.5 < common.explained(rows) <= 1.0
    for word in ("stages explain", "the next second is in", "matmul", "copy", *text[1:]):
        assert word in text[0]


def test_atari_from_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    debug = config.PRESETS["atari"]["debug"]
    out = tmp_path / "bench.json"
    text = atari.run(0.0, out, changes={**debug, "precision": "float32"})
    check(report.read(out), "atari", text, "AtariVectorEnv", "agent steps/s", str(out))
    assert {row["stage"] for row in report.read(out)} == {*LEAVES, *SUMS}


def test_ratios_by_hand() -> None:
    # A machine of 10^9 operations and 10^8 bytes a second.  A stage that takes 8 ms a cycle in a
    # quarter of a call: 32 ms a call; 8·10^6 operations in it are a quarter of the rate.
    low = dict.fromkeys(common.STAGES, 8e-3) | {"cycle": 80e-3}
    costs = {"target": cost.Cost(8e6, 1.6e6), "env": cost.Cost(0, 0)}
    calls = {"target": 0.25, "env": 1.0}
    target_row_last = common.stage_rows(
        "labyrinth", low, costs, calls, (1e9, 1e8), "float32", "abc", 1, 60.0
    )
    env, target = target_row_last
    assert target["ms"] == pytest.approx(32.0)
    assert (target["gflop"], target["mbytes"]) == pytest.approx((8e-3, 1.6))
    assert (target["of_matmul"], target["of_copy"]) == pytest.approx((0.25, 0.5))
    assert (target["calls"], target["share"], target["of_theirs"]) == (
        0.25,
        pytest.approx(0.1),
        None,
    )
    assert (env["of_matmul"], env["of_copy"], env["of_theirs"]) == (None, None, 60.0)
    assert env["commit"] == "abc"
    assert report.bound(target) == ("copy", pytest.approx(0.5))


def test_the_next_second_is_where_most_can_be_gained() -> None:
    row = dict.fromkeys(common.COLUMNS)
    near = row | {"stage": "act", "share": 0.5, "of_matmul": 0.9}
    far = row | {"stage": "backward", "share": 0.3, "of_matmul": 0.52, "of_copy": 0.1}
    whole = row | {"stage": "learner", "share": 0.8, "of_matmul": 0.1}
    assert report.summary([near, far, whole]) == [
        "stages explain 80.0% of the cycle",
        "the next second is in: backward (30% of the cycle, at 52% of the matmul rate)",
    ]


def test_the_fastest_tenth_counts_and_the_first_round_does_not() -> None:
    rounds = [{"cycle": float(t), "act": 100.0 - t} for t in [0, *range(30, 10, -1)]]
    assert common.quiet(rounds, "cycle") == {"cycle": 11.5, "act": 88.5}
    assert common.undisturbed([0.0, 3.0, 2.0]) == 2.0


def test_every_entry_has_its_turn_in_every_round() -> None:
    tape: list[str] = []
    work: common.Work = {"a": (2, lambda: tape.append("a")), "b": (1, lambda: tape.append("b"))}
    low = common.measure(work, 0.0)
    assert "".join(tape) == "aab" * 3
    assert set(low) == {"a", "b"}


def test_rows_of_the_other_workload_stay(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    values = ("atari", "act", 1, "float32", 1.0, None, None, "a", 1.0, 0.1, 1.0, 0.5, None)
    row = dict(zip(common.COLUMNS, values, strict=True))
    report.write(out, [row])
    report.write(out, [{**row, "workload": "labyrinth"}])
    report.write(out, [{**row, "ms": 2.0}])
    report.write(out, [{**row, "cores": 2, "ms": 3.0}])
    found = {(r["workload"], r["cores"]): r["ms"] for r in json.loads(out.read_text())}
    assert found == {("labyrinth", 1): 1.0, ("atari", 1): 2.0, ("atari", 2): 3.0}
    out.write_text("damaged")
    report.write(out, [row])
    assert len(json.loads(out.read_text())) == 1


def test_the_docs_show_the_committed_rows() -> None:
    top = Path(__file__).resolve().parents[1]
    page = (top / report.DOCS).read_text(encoding="utf-8")
    shown = page.partition(report.BEGIN)[2].partition(report.END)[0]
    rows = report.read(top / report.OUT)
    assert {row["workload"] for row in rows} >= {"labyrinth"}
    assert shown == report.markdown(rows) + "\n"


def test_the_docs_follow_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report.DOCS.parent.mkdir()
    report.DOCS.write_text(f"before\n{report.BEGIN}old\n{report.END}\nafter\n", encoding="utf-8")
    values = ("atari", "act", 1, "float32", 2.0, 1.0, 0.5, "a", 1.0, 0.1, 1.0, 0.5, None)
    rows = [dict(zip(common.COLUMNS, values, strict=True))]
    report.write(report.OUT, rows)
    page = report.DOCS.read_text(encoding="utf-8")
    assert page.startswith(f"before\n{report.BEGIN}**atari**") and page.endswith("\nafter\n")
    assert "| act | 2.000 | 1 | 50.0% | 500.0 | 50% | 0.5 | 10% | matmul |" in page
    assert "old" not in page
    report.write(tmp_path / "other.json", [{**rows[0], "stage": "env"}])
    assert report.DOCS.read_text(encoding="utf-8") == page


def test_atari_operations_by_hand() -> None:
    """The paper's sizes, with 18 actions: about 171 GFLOP a cycle, as the released code takes."""
    paper = config.load_preset("paper", workload="atari")
    found = flops(paper, 18)
    conv = 1_638_400 + 5_308_416 + 3_612_672
    see, phi = conv + 2 * 3136 * 512, conv + 2 * 3136 * 32
    gru, head = 6 * 512 * (512 + 19 + 512), 2 * (2 * 512 * 512 + 512 * 19)
    assert found["target"] == 16 * 125 * (see + gru) + 16 * 85 * head
    assert found["backward"] == 16 * 85 * (2 * (see + gru + head) - 1_638_400)
    assert found["encoder"] == 512 * (3 * phi - 1_638_400)
    assert 140e9 < found["cycle"] < 200e9
